"""A quantity over time, in bounded space."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.analysis.level import MOST_BINS, LevelMeter


def test_the_mean_is_weighted_by_time() -> None:
    meter = LevelMeter()
    meter.begin(10.0)
    meter.set(4, 10.0)
    meter.set(1, 11.0)
    level = meter.level(14.0)
    assert level.mean == pytest.approx((4 * 1 + 1 * 3) / 4)
    assert level.peak == 4


def test_a_peak_counts_even_if_it_lasts_no_time() -> None:
    meter = LevelMeter()
    meter.set(1, 0.0)
    meter.set(9, 1.0)
    meter.set(1, 1.0)
    assert meter.level(2.0).peak == 9
    assert meter.level(2.0).mean == pytest.approx(1.0)


def test_bins_tell_early_from_late() -> None:
    meter = LevelMeter()
    meter.set(8, 0.0)
    meter.set(2, 512.0)
    level = meter.level(1024.0)
    middle = int(512 / level.bin_seconds)
    assert level.bins == (8.0,) * middle + (2.0,) * middle


def test_the_last_bin_is_a_mean_over_what_there_is_of_it() -> None:
    meter = LevelMeter()
    meter.set(6, 0.0)
    for seconds in (1e-4, 0.3, 77.7):
        assert meter.level(seconds).bins[-1] == pytest.approx(6.0)


def test_before_any_time_has_passed_the_mean_is_the_value() -> None:
    meter = LevelMeter()
    meter.begin(5.0)
    meter.set(3, 5.0)
    assert meter.level(5.0).mean == 3
    assert meter.level(5.0).bins == ()


CHANGES = st.lists(st.tuples(st.integers(0, 1000), st.floats(0.0, 1e4)), min_size=1, max_size=50)


@given(changes=CHANGES, began=st.floats(0.0, 1e5))
def test_bins_are_few_and_hold_all_of_the_area(
    changes: list[tuple[int, float]], began: float
) -> None:
    meter = LevelMeter()
    meter.begin(began)
    now, area = began, 0.0
    for value, seconds in changes:
        meter.set(value, now)
        area += value * seconds
        now += seconds
    level = meter.level(now)
    assert len(level.bins) <= MOST_BINS
    assert level.peak == max(value for value, _ in changes)
    assert level.mean * (now - began) == pytest.approx(area, rel=1e-6, abs=1e-3)
    last = (now - began) - (len(level.bins) - 1) * level.bin_seconds
    widths = [level.bin_seconds] * (len(level.bins) - 1) + [last]
    assert all(mean <= level.peak * (1 + 1e-9) for mean in level.bins)
    found = sum(mean * width for mean, width in zip(level.bins, widths, strict=False))
    assert found == pytest.approx(area, rel=1e-6, abs=1e-3)


@given(changes=CHANGES)
def test_asking_on_the_way_changes_nothing(changes: list[tuple[int, float]]) -> None:
    asked, quiet = LevelMeter(), LevelMeter()
    now = 0.0
    for value, seconds in changes:
        for meter in (asked, quiet):
            meter.set(value, now)
        now += seconds
        asked.level(now)
    assert asked.level(now) == quiet.level(now)
