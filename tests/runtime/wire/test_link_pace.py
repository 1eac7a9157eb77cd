"""A slowed link carries what its rate allows, whatever the rhythm of those who use it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.errors import ConfigError
from fedoptima.runtime.wire.outbox import BURST_SECONDS, SMALLEST_CHUNK, LinkPace


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_is_sent_at_once_waits_for_what_was_sent_before() -> None:
    pace = LinkPace(1000.0, Clock())
    assert [pace.delay(500) for _ in range(3)] == pytest.approx([0.5, 1.0, 1.5])


def test_a_wait_that_took_too_long_is_made_up_for() -> None:
    clock = Clock()
    pace = LinkPace(1000.0, clock)
    clock.now += pace.delay(500) + 0.02  # overslept
    assert pace.delay(500) == pytest.approx(0.48)


def test_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    pace = LinkPace(1000.0, clock)
    clock.now += 3600
    assert pace.delay(500) == pytest.approx(0.5 - BURST_SECONDS)


@given(
    rate=st.floats(1e2, 1e9),
    uses=st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 2)), min_size=1, max_size=30),
)
def test_the_rate_is_never_exceeded_by_more_than_the_burst(
    rate: float, uses: list[tuple[int, float]]
) -> None:
    clock = Clock()
    pace = LinkPace(rate, clock)
    began, carried = clock.now, 0
    for nbytes, pause in uses:
        clock.now += pace.delay(nbytes)
        carried += nbytes
        assert carried <= rate * (clock.now - began + BURST_SECONDS) * (1 + 1e-6)
        clock.now += pause


@given(rate=st.floats(1e2, 1e9), sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=30))
def test_a_link_in_constant_use_carries_exactly_its_rate(rate: float, sizes: list[int]) -> None:
    clock = Clock()
    pace = LinkPace(rate, clock)
    began = clock.now
    for nbytes in sizes:
        clock.now += pace.delay(nbytes)
    assert clock.now - began == pytest.approx(sum(sizes) / rate, abs=1e-6)


def test_chunks_are_a_tenth_of_a_second_but_never_tiny() -> None:
    assert LinkPace(1e6).chunk_bytes == 100_000
    assert LinkPace(10.0).chunk_bytes == SMALLEST_CHUNK


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="bytes/s"):
        LinkPace(rate)
