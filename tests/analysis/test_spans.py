"""Spans are the stretches of time that the usage adds up: work and waits, by hand."""

from __future__ import annotations

from fedoptima.analysis.spans import Kind, Span
from fedoptima.core.effects import Run
from fedoptima.core.jobs import ExportModel
from fedoptima.core.messages import TurnOn
from fedoptima.core.types import SERVER
from tests.analysis.span_stories import by_time, gets, lane, sends, spans_of, start
from tests.analysis.stories import (
    A,
    B,
    SpanReader,
    answers,
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
    works,
)


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
    for record in by_time([*known, hands_in(15.0, B)]):
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
    for record in [*by_time(start()), starts(7.0, A, merge_of(A)), mail, halts(9.0)]:
        account.observe(record)
    before = account.finish()
    assert account.observe(gets(49.0, A, SERVER, TurnOn())) == []
    assert account.observe(ends(50.0, A, merge_of(A))) == []
    assert account.finish() == before
    assert account.now == 9.0
