"""Everyone is pinged once a period, and never all of them at once."""

from __future__ import annotations

from collections import Counter

from fedoptima.runtime.server.ping_ring import PingRing


def ring(count: int, period: float = 10.0) -> PingRing[int]:
    found = PingRing[int](period)
    for number in range(count):
        found.add(number)
    return found


def test_those_who_came_at_the_same_time_are_pinged_one_after_another() -> None:
    pings = ring(1_000)
    turns = [pings.due(0.1) for _ in range(100)]
    assert {len(turn) for turn in turns} <= {9, 10, 11}  # of steps of 0.1 s: a hundredth of all
    assert Counter(one for turn in turns for one in turn).most_common(1)[0][1] == 1
    assert sum(map(len, turns)) in (999, 1_000)


def test_one_alone_is_pinged_once_a_period() -> None:
    pings = ring(1, period=8.0)
    turns = [len(pings.due(1.0)) for _ in range(24)]
    assert sum(turns) == 3
    assert max(turns) == 1


def test_after_a_long_gap_nobody_is_pinged_twice() -> None:
    pings = ring(5)
    assert sorted(pings.due(1_000.0)) == list(range(5))


def test_who_has_left_is_not_pinged_and_who_comes_waits_for_a_turn() -> None:
    pings = ring(4)
    pings.discard(0)
    pings.add(9)
    assert pings.due(10.0) == [1, 2, 3, 9]
    pings.discard(0)  # again


def test_an_empty_ring_pings_nobody() -> None:
    assert ring(0).due(10.0) == []
