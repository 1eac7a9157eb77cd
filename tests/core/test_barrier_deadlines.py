"""How long a barrier waits, and for whom."""

from __future__ import annotations

import pytest

from fedoptima.core.aggregation import WAIT, Decision
from fedoptima.core.barrier import LEAST_PATIENCE, PATIENCE, Barrier
from fedoptima.core.errors import ConfigError, InvariantBroken
from tests.core.barriers import A, B, C, barrier, leaves
from tests.core.offers import offer, weights


def test_a_barrier_continues_without_the_silent_and_names_them() -> None:
    made = barrier(timeout=10.0)
    offer(made, A, now=5.0)
    offer(made, B, now=12.0)
    assert made.deadline == 15.0
    assert made.reconsider(14.9) == WAIT
    decision = made.reconsider(15.0)
    assert weights(decision).keys() == {A, B}
    assert decision.late == (C,)
    assert made.deadline is None
    made.merged((A, B, C), 16.0)
    made.check()
    # It is in no round until it has handed in, so it costs the others no second timeout.
    offer(made, A, based_on=1, version=1)
    assert weights(offer(made, B, based_on=1, version=1)).keys() == {A, B}
    assert offer(made, C, version=1).refused


def test_a_newcomer_is_not_kept_waiting_for_ever_by_a_silent_device() -> None:
    made = barrier(A, timeout=10.0)
    made.enters(B, 5.0)
    assert made.deadline == 15.0
    decision = made.reconsider(15.0)
    assert (decision.begins, decision.late) == ((B,), (A,))


@pytest.mark.parametrize(("round_", "seconds"), [(0.0, LEAST_PATIENCE), (100.0, 100 * PATIENCE)])
def test_without_a_timeout_the_predicted_round_gives_one(round_: float, seconds: float) -> None:
    made = barrier(round_=round_)
    offer(made, A, now=7.0)
    assert made.deadline == 7.0 + seconds


def test_a_round_that_takes_longer_than_predicted_has_more_time() -> None:
    made = barrier(round_=1.0)
    offer(made, A, now=100.0)
    assert made.deadline == 100.0 + 100 * PATIENCE


def test_a_device_that_left_is_waited_for_without_a_deadline() -> None:
    made = barrier(on_leave="wait", timeout=10.0)
    made.exchanged(C, 0.0)
    offer(made, A, now=1.0)
    offer(made, B, now=1.0)
    assert leaves(made, C, now=5.0) == WAIT
    assert made.deadline is None
    assert made.reconsider(1e9) == WAIT
    assert made.enters(C, 1e9)
    assert made.deadline == 1e9 + 10  # it is connected: from now on it may not be silent


def test_the_silent_are_not_waited_for_while_one_that_left_is() -> None:
    made = barrier(on_leave="wait", timeout=10.0)
    made.exchanged(B, 0.0)
    made.exchanged(C, 0.0)
    offer(made, A, now=0.0)
    leaves(made, B)
    assert made.reconsider(10.0) == Decision(late=(C,))
    made.check()
    assert leaves(made, C, now=11.0) == WAIT  # it stays stalled for B alone
    made.enters(B, 12.0)
    assert weights(offer(made, B)).keys() == {A, B}


def test_a_device_whose_update_waits_for_the_engine_is_not_silent() -> None:
    made = barrier(A, B, timeout=10.0)
    offer(made, A, now=0.0)
    made.handed_in(B)
    assert made.reconsider(10.0) == WAIT
    assert weights(offer(made, B)).keys() == {A, B}


def test_a_barrier_that_everybody_has_left_has_no_deadline() -> None:
    made = barrier(A, B, timeout=10.0)
    offer(made, A, now=5.0)
    leaves(made, A)
    assert made.deadline is None
    assert leaves(made, B) == WAIT
    assert not made.enters(A, 20.0)
    assert made.reconsider(20.0).begins == (A,)
    assert made.deadline is None


def test_a_barriers_timeout_must_be_above_zero() -> None:
    with pytest.raises(ConfigError, match="timeout"):
        Barrier(timeout=0.0)


def test_a_barrier_whose_clock_runs_for_nobody_is_noticed() -> None:
    made = Barrier(timeout=10.0)
    made.deadline = 3.0
    with pytest.raises(InvariantBroken):
        made.check()
