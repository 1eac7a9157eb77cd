from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.errors import InvariantBroken
from fedoptima.sim.state import EventKernel


def test_items_of_one_instant_come_in_the_order_they_were_put_in() -> None:
    kernel = EventKernel()
    for item in "abc":
        kernel.at(1.0, item)
    kernel.at(0.5, "first")
    assert [kernel.pop() for _ in range(5)] == ["first", "a", "b", "c", None]


def test_time_stands_still_when_nothing_is_left() -> None:
    kernel = EventKernel()
    kernel.at(2.0, "x")
    kernel.pop()
    assert kernel.pop() is None
    assert kernel.now == 2.0


def test_nothing_can_be_due_in_the_past() -> None:
    kernel = EventKernel()
    kernel.at(2.0, "x")
    kernel.pop()
    with pytest.raises(InvariantBroken, match=r"already 2\.0"):
        kernel.at(1.9, "y")
    kernel.at(2.0, "now is fine")


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=30))
def test_the_order_is_that_of_a_stable_sort_by_time(times: list[float]) -> None:
    kernel = EventKernel()
    for number, time in enumerate(times):
        kernel.at(time, (time, number))
    popped = [kernel.pop() for _ in times]
    assert popped == sorted((time, number) for number, time in enumerate(times))
