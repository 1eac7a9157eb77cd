"""A device's clock in terms of the server's."""

from __future__ import annotations

import pytest

from fedoptima.runtime.clock import OffsetClock


def pinged(clock: OffsetClock, at: float, *, there: float, back: float, fast: float = 0.0) -> None:
    """Sent ``at``; their clock began with ours and runs ``fast`` seconds a second faster."""
    clock.answered(at, (at + there) * (1 + fast), at + there + back)


def test_of_several_answers_the_quickest_counts() -> None:
    clock = OffsetClock()
    pinged(clock, 10.0, there=0.5, back=0.1)
    pinged(clock, 20.0, there=0.001, back=0.001)
    pinged(clock, 30.0, there=0.1, back=0.5)
    assert clock.offset == pytest.approx(0.0)


def test_a_clock_that_drifts_for_days_is_read_again() -> None:
    """50 seconds in a million: the quickest answer of the first hour is 13 s off after 3 days."""
    clock, fast = OffsetClock(), 50e-6
    pinged(clock, 5.0, there=0.0005, back=0.0005, fast=fast)
    for ping in range(1, 26_000):  # every 10 s, none as quick as the first
        at = 10.0 * ping
        pinged(clock, at, there=0.02, back=0.02, fast=fast)
        assert abs(clock.ours(at * (1 + fast)) - at) < 0.05


def test_a_clock_that_was_never_read_is_not_known() -> None:
    clock = OffsetClock()
    assert not clock.known
    with pytest.raises(ValueError, match="has not been read"):
        clock.ours(1.0)
