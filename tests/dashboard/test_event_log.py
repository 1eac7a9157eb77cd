from __future__ import annotations

from fedoptima.core.effects import Halt, Note
from fedoptima.core.events import (
    Connected,
    Disconnected,
    DiskFailing,
    DiskWorks,
    DriverEvent,
    EvaluationFailed,
    Event,
    Gap,
    JobFailed,
    Received,
    TimerFired,
)
from fedoptima.core.jobs import FullStep
from fedoptima.core.messages import Failed
from fedoptima.core.types import SERVER
from fedoptima.dashboard.event_log import EventLog
from tests.analysis.stories import A, B, told

OUT_OF_MEMORY = JobFailed(1, FullStep(0), "out of memory")


def told_of(
    *events: tuple[float, str, Event | DriverEvent, *tuple[object, ...]],
) -> list[tuple[str, str, str]]:
    log = EventLog()
    for at, node, event, *effects in events:
        log.observe(told(at, node, event, *effects))  # type: ignore[arg-type]
    return [(each.node, each.kind, each.text) for each in log.latest]


def test_a_device_that_fails_is_told_of_once_with_its_message() -> None:
    note = Note("device failed", A, "out of memory")
    assert told_of(
        (1.0, A, OUT_OF_MEMORY), (1.1, SERVER, Received(A, 1, Failed("out of memory")), note)
    ) == [(A, "failed", "out of memory")]


def test_a_device_that_fails_is_told_of_though_its_own_records_never_come() -> None:
    note = Note("device failed", A, "out of memory")
    assert told_of((1.1, SERVER, Received(A, 1, Failed("out of memory")), note)) == [
        (A, "device failed", "out of memory")
    ]


def test_the_same_error_of_two_devices_is_told_of_both() -> None:
    assert len(told_of((1.0, A, OUT_OF_MEMORY), (2.0, B, OUT_OF_MEMORY))) == 2


def test_who_leaves_and_comes_back_is_told_but_not_who_comes_first() -> None:
    assert told_of(
        (0.0, SERVER, Connected(A, 1)),
        (1.0, SERVER, Disconnected(A, 1)),
        (1.0, A, Disconnected(SERVER, 1)),
        (2.0, SERVER, Connected(A, 2)),
    ) == [(A, "left", ""), (A, "came back", "")]


def test_what_happens_again_and_again_is_one_entry_with_a_count() -> None:
    log = EventLog()
    for at in range(1000):
        note = Note("update refused", A, "9 versions behind")
        log.observe(told(float(at), SERVER, TimerFired("x"), note))
    (entry,) = log.latest
    assert (entry.times, entry.at, entry.serious) == (1000, 999.0, False)


def test_only_the_last_ones_are_kept() -> None:
    log = EventLog()
    for number in range(1000):
        note = Note("update refused", A, f"{number} versions behind")
        log.observe(told(float(number), SERVER, TimerFired("x"), note))
    assert len(log.latest) < 100
    assert log.latest[-1].text == "999 versions behind"


def test_a_dropped_peer_a_failed_evaluation_and_the_end_are_told() -> None:
    assert told_of(
        (1.0, SERVER, TimerFired("x"), Note("peer dropped", B, "sent nonsense")),
        (2.0, SERVER, EvaluationFailed(0, "no test data")),
        (3.0, SERVER, TimerFired("x"), Halt("every device has failed", failed=True)),
    ) == [
        (B, "peer dropped", "sent nonsense"),
        (SERVER, "evaluation failed", "no test data"),
        (SERVER, "the run failed", "every device has failed"),
    ]


def test_what_a_device_notes_is_its_own_word_and_nobody_elses() -> None:
    forged = Note("peer dropped", SERVER, "the server cheats")
    assert told_of((1.0, A, Disconnected(SERVER, 1), forged)) == [
        (A, "peer dropped", "the server cheats")
    ]
    forged = Note("device failed", B, "it cheats")
    assert told_of((1.0, A, Disconnected(SERVER, 1), forged)) == [(A, "device failed", "it cheats")]


def test_a_long_text_is_cut() -> None:
    ((_, kind, text),) = told_of((1.0, SERVER, TimerFired("x"), Note("k" * 1000, A, "t" * 10**6)))
    assert len(kind) == 100
    assert len(text) == 300
    assert text.endswith("... (1,000,000 characters)")


def test_disks_that_fail_and_gaps_are_told_of() -> None:
    assert told_of(
        (1.0, A, DiskFailing("no room")),
        (2.0, A, DiskWorks()),
        (3.0, SERVER, Gap(7, 1.5, ())),
    ) == [
        (A, "cannot write", "no room"),
        (A, "writes again", ""),
        (SERVER, "gap in the trace", "7 records since 1.5 s could not be written"),
    ]
