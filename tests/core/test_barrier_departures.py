"""A barrier and devices that leave, come back, or never do."""

from __future__ import annotations

import pytest

from fedoptima.core.aggregation import WAIT
from tests.core.barriers import A, B, C, barrier, leaves
from tests.core.offers import offer, weights


def test_a_barrier_that_waited_only_for_a_device_that_left_opens() -> None:
    made = barrier()
    offer(made, A)
    offer(made, B)
    assert weights(leaves(made, C)) == {A: 0.5, B: 0.5}


def test_the_update_of_a_device_that_left_is_not_merged_behind_its_back() -> None:
    made = barrier()
    offer(made, A)
    assert leaves(made, A) == WAIT
    offer(made, B)
    assert weights(offer(made, C)).keys() == {B, C}


def test_a_barrier_told_to_wait_keeps_the_update_of_a_device_that_left() -> None:
    made = barrier(on_leave="wait")
    offer(made, A)
    assert leaves(made, A) == WAIT
    assert not made.enters(A, 1.0)  # it has done its round
    made.check()
    offer(made, B)
    assert weights(offer(made, C)).keys() == {A, B, C}


def test_a_device_that_is_back_with_its_work_is_waited_for_again() -> None:
    made = barrier()
    offer(made, A)
    leaves(made, B)
    made.returned(B, 1.0, current=True)
    made.check()
    assert offer(made, C) == WAIT
    assert weights(offer(made, B)).keys() == {A, B, C}


@pytest.mark.parametrize("current", [True, False])
def test_a_device_that_is_back_without_its_work_waits_for_the_next_round(current: bool) -> None:
    made = barrier()
    offer(made, A)
    leaves(made, B)
    if not current:  # its work is of another round
        made.returned(B, 1.0, current=False)
    else:
        assert not made.enters(B, 1.0)
    made.check()
    assert weights(offer(made, C)).keys() == {A, C}


def test_a_barrier_told_to_wait_waits_until_the_device_is_back_and_has_done_its_round() -> None:
    made = barrier(on_leave="wait")
    made.exchanged(C, 0.0)
    offer(made, A)
    offer(made, B)
    assert leaves(made, C) == WAIT
    assert made.enters(C, 1.0)  # at once: the others wait for it
    made.check()
    assert weights(offer(made, C)).keys() == {A, B, C}


def test_a_barrier_told_to_wait_does_not_wait_for_a_device_that_never_worked() -> None:
    made = barrier(on_leave="wait")
    offer(made, A)
    offer(made, B)
    assert weights(leaves(made, C)).keys() == {A, B}


@pytest.mark.parametrize(("at", "waits"), [(59.0, True), (61.0, False)])
def test_a_barrier_told_to_wait_does_not_wait_for_a_device_that_was_silent_before_it_left(
    at: float, waits: bool
) -> None:
    made = barrier(on_leave="wait")
    made.exchanged(C, 0.0)
    offer(made, A)
    offer(made, B)
    assert (leaves(made, C, at) == WAIT) == waits


def test_a_device_that_trains_without_the_server_is_silent_for_a_whole_round() -> None:
    made = barrier(on_leave="wait")
    for device in (A, B, C):
        offer(made, device)
    made.merged((A, B, C), 0.0)
    offer(made, A, based_on=1, version=1)
    offer(made, B, based_on=1, version=1)
    assert leaves(made, C, 299.0) == WAIT


def test_a_barrier_told_to_wait_waits_for_a_device_that_left_during_the_merge() -> None:
    made = barrier(A, B, on_leave="wait")
    offer(made, A)
    offer(made, B)
    leaves(made, B)
    made.merged((A,), 1.0)
    made.check()
    assert offer(made, A, based_on=1, version=1) == WAIT
    assert made.deadline is None
    assert made.enters(B, 2.0)
    assert weights(offer(made, B, based_on=1, version=1)).keys() == {A, B}


def test_after_a_restart_all_are_waited_for_until_they_are_given_up() -> None:
    made = barrier()
    for device in (A, B, C):
        assert leaves(made, device, awaited=True) == WAIT
    assert made.enters(A, 1.0)  # it does its round again, at once
    made.returned(B, 1.0, current=True)
    offer(made, A)
    assert offer(made, B) == WAIT
    made.give_up([C])
    made.check()
    assert weights(made.reconsider(2.0)).keys() == {A, B}
