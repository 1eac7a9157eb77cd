"""Transfers join the records of the two sides."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.analysis.spans import Kind, Span
from fedoptima.core.messages import ActivationBatch, GlobalModel, GradientBatch, ModelUpdate, TurnOn
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record
from tests.analysis.span_stories import gets, sends, spans_of, start
from tests.analysis.stories import DATA, A, B, SpanReader, blob, halts, loses


def transfers(spans: Sequence[Span]) -> list[tuple[str, str, str, float, float]]:
    return [
        (span.node, span.peer, span.what, span.start, span.end)
        for span in spans
        if span.kind is Kind.SEND
    ]


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
