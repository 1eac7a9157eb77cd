from __future__ import annotations

import logging

import pytest

from fedoptima.analysis.metrics import Moment
from fedoptima.tracking.tracker import Ending, Tracking
from tests.tracking.moments import moment_of

MOMENT = moment_of(())
END = Ending(MOMENT.summary, {}, ())


class Diary:
    def __init__(self) -> None:
        self.entries: list[object] = []

    def observe(self, moment: Moment) -> None:
        self.entries.append(moment)

    def finish(self, ending: Ending) -> None:
        self.entries.append(ending)

    def close(self) -> None:
        self.entries.append("closed")


class Broken(Diary):
    def observe(self, moment: Moment) -> None:
        super().observe(moment)
        raise OSError("no space left")


class Hands:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_who_looks_on_is_told_once_a_second_and_at_each_evaluation() -> None:
    diary, clock = Diary(), Hands()
    tracking = Tracking([diary], clock)
    for now, evaluations in ((100.0, 0), (100.5, 0), (100.6, 1), (100.7, 1), (101.7, 1)):
        clock.now = now
        tracking.look(evaluations, lambda: MOMENT)
    assert diary.entries == [MOMENT] * 3


def test_the_dearer_a_look_is_the_rarer_they_are() -> None:
    diary, clock = Diary(), Hands()
    tracking = Tracking([diary], clock)

    def take() -> Moment:
        clock.now += 0.5
        return MOMENT

    tracking.look(0, take)
    clock.now += 10.0
    tracking.look(0, take)
    assert len(diary.entries) == 1
    clock.now += 16.0
    tracking.look(0, take)
    assert len(diary.entries) == 2


def test_nothing_is_counted_for_nobody() -> None:
    def never() -> Moment:
        raise AssertionError

    tracking = Tracking([])
    tracking.look(3, never)
    assert not tracking.wanted


def test_a_tracker_that_fails_is_left_out_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, diary = Broken(), Diary()
    tracking = Tracking([broken, diary])
    with caplog.at_level(logging.WARNING):
        for evaluations in range(1, 4):
            tracking.look(evaluations, lambda: MOMENT)
        tracking.finish(END)
        tracking.close()
    assert broken.entries == [MOMENT, "closed"]
    assert diary.entries == [MOMENT, MOMENT, MOMENT, END, "closed"]
    (said,) = caplog.messages
    assert "no space left" in said
    assert "the run continues" in said
