"""Spans are the stretches of time that the usage adds up; transfers join the two sides' records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedoptima.analysis.idle_time import Usage, UsageAccount
from fedoptima.analysis.spans import Kind, Span
from fedoptima.core.effects import Halt, Run, Send
from fedoptima.core.events import Received, TimerFired
from fedoptima.core.jobs import ExportModel
from fedoptima.core.messages import (
    ActivationBatch,
    GlobalModel,
    GradientBatch,
    Message,
    ModelUpdate,
    TurnOn,
)
from fedoptima.core.types import SERVER, NodeId
from fedoptima.testing.world import Description, World
from fedoptima.trace.record import Record
from tests.analysis.stories import (
    DATA,
    A,
    B,
    SpanReader,
    answers,
    blob,
    connects,
    ends,
    halts,
    hands_in,
    loads,
    loses,
    merge_of,
    plans,
    prepares,
    starts,
    step,
    told,
    works,
)
from tests.support.fleets import descriptions
from tests.verification.traces import trace_of

METHODS = ["fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl", "cse_fsl"]
WORK = (Kind.TRAIN, Kind.MERGE, Kind.OTHER)
TRANSFERS = (Kind.SEND, Kind.RECEIVE)


def spans_of(records: Sequence[Record]) -> list[Span]:
    account = SpanReader()
    found = [span for record in _by_time(records) for span in account.observe(record)]
    return found + account.finish()


def _by_time(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.at)


def lane(spans: Sequence[Span], node: NodeId) -> list[tuple[Kind, float, float]]:
    """What a node did, without its transfers."""
    return [
        (span.kind, span.start, span.end)
        for span in sorted(spans, key=lambda span: span.start)
        if span.node == node and span.kind not in TRANSFERS
    ]


def transfers(spans: Sequence[Span]) -> list[tuple[str, str, str, float, float]]:
    return [
        (span.node, span.peer, span.what, span.start, span.end)
        for span in spans
        if span.kind is Kind.SEND
    ]


def start() -> list[Record]:
    """Everybody is there at 0, the plan is ready at 5, a model is loaded by 7."""
    records = [*connects(0.0, A, B), *plans(0.0, 5.0)]
    for device in (A, B):
        records += [*prepares(5.5, 6.0, device), *loads(6.0, 7.0, device)]
    return records


# ---- work and waits, by hand -----------------------------------------------------------------


def test_a_barrier_is_a_wait_for_slower_devices_until_the_last_arrival() -> None:
    merge = merge_of(A, B)
    spans = spans_of(
        [
            *start(),
            *works(7.0, 9.0, A),
            hands_in(9.5, A),
            *works(7.0, 14.0, B),
            hands_in(15.0, B, Run(1, merge)),
            ends(16.0, SERVER, merge, *answers(A, B)),
            *loads(17.0, 18.0, A),
            *loads(17.0, 18.0, B),
            halts(18.0),
        ]
    )
    assert lane(spans, A) == [
        (Kind.OTHER, 6.0, 7.0),
        (Kind.TRAIN, 7.0, 9.0),
        (Kind.IDLE_1, 9.0, 9.5),  # its update is on the way
        (Kind.IDLE_2, 9.5, 15.0),
        (Kind.IDLE_1, 15.0, 17.0),  # the merge, and the model is on the way
        (Kind.OTHER, 17.0, 18.0),
    ]
    assert lane(spans, SERVER) == [
        (Kind.IDLE_1, 5.0, 15.0),
        (Kind.MERGE, 15.0, 16.0),
        (Kind.IDLE_1, 16.0, 18.0),
    ]


def test_spans_say_which_job_it_was_and_whose_batch() -> None:
    job = step(A, 0)
    spans = spans_of([*start(), *works(8.0, 9.0, SERVER, job), halts(9.0)])
    (span,) = [span for span in spans if span.node == SERVER and span.kind is Kind.TRAIN]
    assert span == Span(SERVER, Kind.TRAIN, 8.0, 9.0, "ServerStep", peer=A)
    exports = spans_of([*start(), *works(7.0, 8.0, A, ExportModel()), halts(9.0)])
    assert Span(A, Kind.OTHER, 7.0, 8.0, "ExportModel") in exports


def test_who_leaves_is_away_until_a_model_is_loaded_again() -> None:
    spans = spans_of(
        [
            *start(),
            *works(7.0, 8.0, A),
            *loses(9.0, A, alive=False),
            *connects(20.0, A),
            *loads(22.0, 23.0, A),
            halts(25.0),
        ]
    )
    assert lane(spans, A)[2:] == [
        (Kind.IDLE_1, 8.0, 9.0),
        (Kind.AWAY, 9.0, 22.0),
        (Kind.OTHER, 22.0, 23.0),
        (Kind.IDLE_1, 23.0, 25.0),
    ]


def test_who_never_comes_back_is_away_to_the_end() -> None:
    spans = spans_of([*start(), *loses(9.0, A, alive=False), halts(25.0)])
    assert lane(spans, A)[-1] == (Kind.AWAY, 9.0, 25.0)


def test_work_goes_on_offline_and_then_the_device_is_away() -> None:
    spans = spans_of(
        [
            *start(),
            starts(7.0, A, merge_of(A)),
            *loses(9.0, A, alive=True),
            ends(12.0, A, merge_of(A)),
            *connects(20.0, A),
            halts(21.0),
        ]
    )
    assert lane(spans, A)[1:] == [
        (Kind.MERGE, 7.0, 9.0),
        (Kind.MERGE, 9.0, 12.0),
        (Kind.AWAY, 12.0, 20.0),
        (Kind.IDLE_1, 20.0, 21.0),
    ]


def test_start_up_has_no_spans_but_transfers() -> None:
    spans = spans_of([*connects(0.0, A, B), *plans(0.0, 5.0), *prepares(5.5, 6.0, A)])
    assert lane(spans, A) == []
    assert lane(spans, SERVER) == [(Kind.IDLE_1, 5.0, 6.0)]


def test_a_wait_is_told_once_its_reason_is_known() -> None:
    merge, account = merge_of(A, B), SpanReader()
    known = [*start(), *works(7.0, 9.0, A), hands_in(9.5, A), *works(7.0, 15.0, B)]
    for record in _by_time([*known, hands_in(15.0, B)]):
        account.observe(record)
    assert Span(A, Kind.IDLE_1, 9.5, 15.0) in account.finish()  # nothing else is known yet
    assert [span.node for span in account.observe(starts(15.0, SERVER, merge))] == [SERVER]
    assert Span(A, Kind.IDLE_2, 9.5, 15.0) in account.finish()
    final = account.observe(starts(17.0, A, merge))
    assert final == [Span(A, Kind.IDLE_2, 9.5, 15.0), Span(A, Kind.IDLE_1, 15.0, 17.0)]


def test_an_update_that_arrives_before_its_device_is_done_by_its_clock() -> None:
    """A job stays one span, and the wait for others is as long as it was, a little later."""
    merge = merge_of(A, B)
    spans = spans_of(
        [
            *start(),
            *works(7.0, 9.5, A),
            hands_in(9.0, A),
            *works(7.0, 14.0, B),
            hands_in(15.0, B, Run(1, merge)),
            ends(16.0, SERVER, merge, *answers(A, B)),
            *loads(17.0, 18.0, A),
            halts(18.0),
        ]
    )
    assert lane(spans, A)[1:4] == [
        (Kind.TRAIN, 7.0, 9.5),
        (Kind.IDLE_2, 9.5, 15.5),
        (Kind.IDLE_1, 15.5, 17.0),
    ]


def test_nothing_is_told_after_the_end() -> None:
    account = SpanReader()
    mail = sends(8.0, SERVER, A, TurnOn())
    for record in [*_by_time(start()), starts(7.0, A, merge_of(A)), mail, halts(9.0)]:
        account.observe(record)
    before = account.finish()
    assert account.observe(gets(49.0, A, SERVER, TurnOn())) == []
    assert account.observe(ends(50.0, A, merge_of(A))) == []
    assert account.finish() == before
    assert account.now == 9.0


# ---- transfers, by hand ----------------------------------------------------------------------


def sends(at: float, node: NodeId, to: NodeId, message: Message, session: int = 1) -> Record:
    return told(at, node, TimerFired("any"), Send(to, session, message))


def gets(at: float, node: NodeId, sender: NodeId, message: Message, session: int = 1) -> Record:
    return told(at, node, Received(sender, session, message))


def batch(seq: int, device: NodeId = A) -> ActivationBatch:
    return ActivationBatch(seq, blob(f"{device}/0/{seq}", 1000))


def mail_of(*records: Record) -> list[tuple[str, str, str, float, float]]:
    return transfers(spans_of(records))


def test_a_transfer_is_seen_at_both_ends() -> None:
    spans = spans_of([sends(1.0, A, SERVER, batch(0)), gets(3.0, SERVER, A, batch(0))])
    assert spans == [
        Span(A, Kind.SEND, 1.0, 3.0, "ActivationBatch", SERVER, 1064),
        Span(SERVER, Kind.RECEIVE, 1.0, 3.0, "ActivationBatch", A, 1064),
    ]


def test_a_model_overtakes_batches_and_each_is_matched_with_its_own_sending() -> None:
    update = ModelUpdate(0, 8, blob("m", 10))
    found = mail_of(
        sends(1.0, A, SERVER, batch(0)),
        sends(1.5, A, SERVER, batch(1)),
        sends(2.0, A, SERVER, update),
        gets(3.0, SERVER, A, update),
        gets(4.0, SERVER, A, batch(0)),
        gets(5.0, SERVER, A, batch(1)),
    )
    assert [(what, begin, end) for *_, what, begin, end in found] == [
        ("ModelUpdate", 2.0, 3.0),
        ("ActivationBatch", 1.0, 4.0),
        ("ActivationBatch", 1.5, 5.0),
    ]


def test_devices_and_directions_do_not_mix() -> None:
    gradient = GradientBatch(0, 0, blob("g", 10))
    found = mail_of(
        sends(1.0, A, SERVER, batch(0)),
        sends(2.0, B, SERVER, batch(0)),
        sends(2.5, SERVER, A, gradient),
        gets(3.0, SERVER, B, batch(0)),
        gets(4.0, A, SERVER, gradient),
        gets(5.0, SERVER, A, batch(0)),
    )
    assert found == [
        (B, SERVER, "ActivationBatch", 2.0, 3.0),
        (SERVER, A, "GradientBatch", 2.5, 4.0),
        (A, SERVER, "ActivationBatch", 1.0, 5.0),
    ]


def test_a_receipt_recorded_before_the_sending_has_no_length() -> None:
    assert mail_of(
        gets(3.0, SERVER, A, batch(0)),
        sends(3.001, A, SERVER, batch(0)),
        sends(4.0, A, SERVER, batch(1)),
        gets(4.5, SERVER, A, batch(1)),
    ) == [
        (A, SERVER, "ActivationBatch", 3.0, 3.0),
        (A, SERVER, "ActivationBatch", 4.0, 4.5),
    ]


def test_what_was_lost_is_not_taken_for_what_arrived() -> None:
    assert mail_of(
        sends(1.0, A, SERVER, batch(0)),
        sends(2.0, A, SERVER, batch(1)),
        gets(3.0, SERVER, A, batch(1)),
    ) == [(A, SERVER, "ActivationBatch", 2.0, 3.0)]


def test_what_a_dead_session_had_in_flight_is_forgotten() -> None:
    lost = loses(2.0, A, alive=False)
    late = sends(2.5, A, SERVER, batch(1))  # the device has not noticed yet
    assert mail_of(sends(1.0, A, SERVER, batch(0)), *lost, late, halts(9.0)) == []
    # The next session begins with nothing, even where nobody said that the last one was over.
    again = [sends(4.0, A, SERVER, TurnOn(), session=2), gets(5.0, SERVER, A, TurnOn(), session=2)]
    assert mail_of(sends(1.0, A, SERVER, TurnOn()), *again) == [(A, SERVER, "TurnOn", 4.0, 5.0)]


def test_what_is_in_flight_is_open() -> None:
    mail = [sends(7.5, A, SERVER, batch(0)), sends(9.0, A, SERVER, batch(1))]
    found = transfers(spans_of([*start(), *mail, halts(9.0)]))
    assert found == [(A, SERVER, "ActivationBatch", 7.5, 9.0)]  # the other one has just been sent


def test_receipts_of_unknown_sendings_do_not_pile_up() -> None:
    account = SpanReader()
    for number in range(1000):
        assert account.observe(gets(float(number), SERVER, A, batch(number))) == []
    assert account.observe(sends(1000.0, A, SERVER, batch(0))) == []  # long forgotten
    sent = account.observe(sends(1001.0, A, SERVER, batch(999)))
    assert [span.start for span in sent] == [999.0, 999.0]


# ---- the laws, over runs of all methods ------------------------------------------------------


def sums(spans: Sequence[Span]) -> dict[tuple[NodeId, Kind], float]:
    total: defaultdict[tuple[NodeId, Kind], float] = defaultdict(float)
    for span in spans:
        total[span.node, span.kind] += span.end - span.start
    return total


def assert_adds_up(spans: Sequence[Span], usage: dict[NodeId, Usage]) -> None:
    total = sums(spans)
    for node, use in usage.items():
        busy = sum(total[node, kind] for kind in WORK)
        found = (busy, total[node, Kind.IDLE_1], total[node, Kind.IDLE_2])
        assert found == pytest.approx((use.busy, use.idle_1, use.idle_2), abs=1e-9)


def assert_covers(spans: Sequence[Span]) -> None:
    """From its first moment on, a node's time is told without a gap and without an overlap."""
    for node in {span.node for span in spans}:
        told_so_far = lane(spans, node)
        for (_, _, end), (_, begin, _) in pairwise(told_so_far):
            assert begin == pytest.approx(end, abs=1e-9)
        if told_so_far:
            assert told_so_far[-1][2] == max(span.end for span in spans)


@pytest.mark.parametrize("method", METHODS)
def test_spans_sum_to_the_usage_at_any_moment_whatever_happens(method: str) -> None:
    account, alone, found = SpanReader(), UsageAccount(), []
    for record in trace_of(method):  # with cuts, a hang, leaving and returning
        found += account.observe(record)
        alone.observe(record)
        so_far = found + account.finish()
        assert_adds_up(so_far, dict(account.usage.usage()))
        assert account.usage.usage() == alone.usage(), "spans must not change the sums"
    assert_covers(so_far)
    kinds = {span.kind for span in found}
    assert {Kind.TRAIN, Kind.MERGE, Kind.SEND, Kind.RECEIVE, Kind.IDLE_1, Kind.AWAY} <= kinds
    if method in ("fl", "splitfed", "pipar", "cse_fsl"):
        assert Kind.IDLE_2 in kinds


@settings(max_examples=50)
@given(descriptions())
def test_spans_sum_to_the_usage_whatever_the_fleet_the_method_and_its_luck(
    description: Description,
) -> None:
    world = World(description)
    world.run()
    account = UsageAccount()
    for record in world.records:
        account.observe(record)
    spans = spans_of(world.records)
    assert_adds_up(spans, dict(account.usage()))
    assert_covers(spans)


@pytest.mark.parametrize("method", METHODS)
def test_every_message_that_arrived_is_a_transfer(method: str) -> None:
    account, found, received = SpanReader(), [], 0
    for record in trace_of(method):
        found += account.observe(record)
        received += isinstance(record.event, Received)
        if any(isinstance(effect, Halt) for effect in record.effects):
            break
    assert sum(span.kind is Kind.SEND for span in found) == received
    assert sum(span.kind is Kind.RECEIVE for span in found) == received


@settings(max_examples=25)
@given(
    method=st.sampled_from(METHODS),
    skews=st.tuples(*[st.floats(-0.002, 0.002)] * 3),
)
def test_clocks_that_differ_a_little_make_no_negative_spans(
    method: str, skews: tuple[float, ...]
) -> None:
    """As in a real run: each device's records are in order, but off by a moment."""
    skew = {f"d{number}": seconds for number, seconds in enumerate(skews)}
    records = _by_time(
        [
            replace(record, at=max(0.0, record.at + skew.get(record.node, 0.0)))
            for record in trace_of(method, ())
        ]
    )
    account = UsageAccount()
    for record in records:
        account.observe(record)
    spans = spans_of(records)
    assert all(span.end >= span.start for span in spans)
    assert_covers(spans)
    total = sums(spans)
    for node, use in account.usage().items():
        idle = total[node, Kind.IDLE_1] + total[node, Kind.IDLE_2]
        assert sum(total[node, kind] for kind in WORK) == pytest.approx(use.busy, abs=1e-9)
        assert idle == pytest.approx(use.idle, abs=1e-9)
        # A wait that ends with the run cannot be made up for.
        assert total[node, Kind.IDLE_2] == pytest.approx(use.idle_2, abs=0.0041)


def test_a_models_answer_is_matched_though_all_devices_get_the_same() -> None:
    model = GlobalModel(1, 0.0, DATA)
    assert mail_of(
        sends(1.0, SERVER, A, model),
        sends(1.0, SERVER, B, model),
        gets(2.0, B, SERVER, model),
        gets(3.0, A, SERVER, model),
    ) == [
        (SERVER, B, "GlobalModel", 1.0, 2.0),
        (SERVER, A, "GlobalModel", 1.0, 3.0),
    ]
