"""Records can be lost where a process was killed, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedoptima.core.effects import Send
from fedoptima.core.events import Connected, Disconnected, Received
from fedoptima.core.messages import GlobalModel, GradientBatch
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.trace.record import Record
from tests.verification.traces import CHANGES, D0, D1, D2, first_difference, received, trace_of


def of_device(records: Sequence[Record], device: NodeId) -> list[int]:
    return [index for index, record in enumerate(records) if record.node == device]


def without(records: Sequence[Record], indices: Sequence[int]) -> list[Record]:
    lost = set(indices)
    return [record for index, record in enumerate(records) if index not in lost]


@pytest.mark.parametrize("name", ["fedbuff", "splitfed", "fedoptima"])
def test_a_killed_device_may_have_lost_its_last_records(name: str) -> None:
    records = trace_of(name)
    own = of_device(records, D1)
    births = [i for i in own if isinstance(records[i].event, Connected)]
    assert len(births) == 2, "d1 lives twice"
    first_life = [i for i in own if i < births[1]]
    for lost in range(len(first_life) + 1):
        assert (
            first_difference(name, without(records, first_life[len(first_life) - lost :])) is None
        )
    second_life = [i for i in own if i >= births[1]]
    for lost in range(len(second_life) + 1):
        rest = without(records, second_life[len(second_life) - lost :])
        assert first_difference(name, rest) is None


@pytest.mark.parametrize("name", ["fedbuff", "splitfed", "fedoptima"])
def test_records_lost_in_the_middle_of_a_life_are_missed(name: str) -> None:
    records = trace_of(name, ())
    own = of_device(records, D0)
    sends = [i for i in own if any(isinstance(e, Send) for e in records[i].effects)]
    assert len(sends) > 3
    for index in sends[:-1]:
        assert first_difference(name, without(records, [index])) is not None


def test_a_whole_session_lost_in_the_middle_of_a_life_is_missed() -> None:
    records = trace_of("fedasync")
    own = of_device(records, D0)  # cut off once, and back in the same incarnation
    back = [i for i in own if isinstance(records[i].event, Connected)][1]
    first = [i for i in own if i < back]
    assert first_difference("fedasync", without(records, first)) is not None


def test_a_device_without_any_records_is_taken_at_the_servers_word() -> None:
    records = trace_of("fedoptima")
    assert first_difference("fedoptima", without(records, of_device(records, D2))) is None


def test_what_a_server_sent_is_never_lost_in_a_run_that_ended() -> None:
    """So a device that heard more than the server said is caught."""
    records = trace_of("fedoptima", ())
    last = max(index for index, r in enumerate(records) if received(GlobalModel, D0)(r))
    more = [*records[: last + 1], records[last], *records[last + 1 :]]
    assert first_difference("fedoptima", more) is not None
    alone = [record for record in records if record.node != SERVER]
    assert first_difference("fedoptima", alone) is None  # the server's records are all lost


def test_a_message_that_nobody_sent_and_nobody_minded_is_found() -> None:
    records = trace_of("fedoptima", ())
    gradient = GradientBatch(1, 0, Payload(PayloadId("server/0/9"), 4))
    end = Record(records[-1].at, D0, Disconnected(SERVER, 1), [])
    unheard = Record(records[-1].at, D0, Received(SERVER, 1, gradient), [])
    difference = first_difference("fedoptima", [*records, end, unheard])
    assert difference is not None
    assert (difference.number, difference.what) == (len(records) + 2, "received")
    assert (difference.expected, difference.got) == ("nothing", repr(gradient))


def test_records_that_begin_in_the_middle_of_a_life_are_refused() -> None:
    records = [r for r in trace_of("fl") if r.node == D0][1:]
    difference = first_difference("fl", records)
    assert difference is not None
    assert "first record" in difference.what
    assert difference.number == 1


def test_a_session_ended_and_begun_again_needs_no_word_of_its_end() -> None:
    """A device may learn of the end of a session from the beginning of the next."""
    records = trace_of("fl", CHANGES[:2])
    own = of_device(records, D0)
    end = next(i for i in own if isinstance(records[i].event, Disconnected))
    assert first_difference("fl", without(records, [end])) is None
