"""Devices that say more than they may: one message too many is refused, and changes nothing."""

from __future__ import annotations

import pytest

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.jobs import ServerStep
from fedoptima.core.messages import ActivationBatch, Assignment, Join
from fedoptima.core.method import Method
from fedoptima.core.types import PayloadId
from tests.support.bench import ServerBench, payload, running_server, sent
from tests.support.rows import Options, no_auxiliary, oafl, pipar, splitfed


def batch(seq: int, part: int = 0, parts: int = 1) -> ActivationBatch:
    return ActivationBatch(seq, payload(f"a/0/{seq}{part}"), part, parts)


def busy_server(method: Method) -> ServerBench:
    """Its engine works for another device."""
    bench = running_server(method, "a", "b")
    bench.says("b", batch(0))
    assert isinstance(bench.job, ServerStep)
    return bench


@pytest.mark.parametrize("row", [splitfed, oafl, no_auxiliary])
def test_the_next_batch_is_refused_until_the_last_one_was_answered(row: object) -> None:
    bench = busy_server(row(Options()))  # type: ignore[operator]
    bench.says("a", batch(0))
    with pytest.raises(ProtocolViolation, match="before the last were answered"):
        bench.says("a", batch(1))
    bench.machine.check()
    bench.done()  # b's
    bench.done()  # a's
    bench.says("a", batch(1))


def test_as_many_parts_may_wait_as_are_in_flight_together() -> None:
    bench = busy_server(pipar(Options(micro_batches=3)))
    for part in range(3):
        bench.says("a", batch(0, part, 3))
    with pytest.raises(ProtocolViolation):
        bench.says("a", batch(0, 3, 3))


def test_a_device_joins_once() -> None:
    bench = running_server(splitfed(Options()), "a")
    with pytest.raises(ProtocolViolation, match="a joined twice"):
        bench.says("a", Join(0, 8, 1.0, 1.0))


def test_a_device_that_gave_up_what_it_brought_may_say_so_once() -> None:
    bench = running_server(splitfed(Options()), "a")
    effects = bench.joins("late", training=True)
    assert len(sent(effects, Assignment)) == 1
    bench.says("late", Join(0, 8, 1.0, 1.0))
    with pytest.raises(ProtocolViolation, match="late joined twice"):
        bench.says("late", Join(0, 8, 1.0, 1.0))


def test_a_device_cannot_say_again_and_again_that_it_brought_work() -> None:
    """Each time it was answered, with a model, and the others waited."""
    bench = running_server(splitfed(Options()), "a")
    bench.joins("late", training=True)
    for again in (
        Join(0, 8, 1.0, 1.0, training=True),
        Join(0, 8, 1.0, 1.0, pending=PayloadId("x")),
    ):
        with pytest.raises(ProtocolViolation, match="late joined twice"):
            bench.says("late", again)
