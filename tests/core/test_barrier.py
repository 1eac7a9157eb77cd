from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.aggregation import WAIT, Decision, Offer
from fedoptima.core.barrier import LEAST_PATIENCE, PATIENCE, Barrier
from fedoptima.core.errors import ConfigError, InvariantBroken
from fedoptima.core.types import NodeId
from tests.support.bench import update

A, B, C, D = (NodeId(name) for name in "abcd")


def barrier(
    *devices: NodeId, on_leave: str = "drop", timeout: float | None = None, round_: float = 0.0
) -> Barrier:
    """In a round of these devices, which began at 0."""
    made = Barrier(on_leave=on_leave, timeout=timeout)  # type: ignore[arg-type]
    made.planned(round_, 0.0)
    for device in devices or (A, B, C):
        assert not made.enters(device, 0.0)
    assert made.reconsider(0.0).begins == (devices or (A, B, C))
    made.check()
    return made


def offer(
    policy: Barrier,
    device: NodeId,
    *,
    based_on: int = 0,
    version: int = 0,
    samples: int = 1,
    now: float = 0.0,
) -> Decision:
    policy.handed_in(device)
    handed_in = update(f"{device}/0/1", version=based_on)
    decision = policy.offer(Offer(device, handed_in, samples, version, now))
    policy.check()
    return decision


def leaves(policy: Barrier, device: NodeId, now: float = 0.0, *, awaited: bool = False) -> Decision:
    policy.left(device, now, awaited=awaited)
    policy.check()
    decision = policy.reconsider(now)
    policy.check()
    return decision


def weights(decision: Decision) -> dict[NodeId, float]:
    assert decision.merge is not None
    return {part.device: part.weight for part in decision.merge.parts}


# ---- a round -----------------------------------------------------------------------------------


def test_a_barrier_opens_when_all_are_there_weighted_by_samples_in_order_of_name() -> None:
    made = barrier()
    assert offer(made, C, samples=1) == WAIT
    assert offer(made, A, samples=2) == WAIT
    decision = offer(made, B, samples=5)
    assert list(weights(decision).items()) == [(A, 0.25), (B, 0.625), (C, 0.125)]
    assert decision.merge is not None
    assert decision.merge.keep == 0.0
    assert decision.refresh == (A, B, C)
    assert [device for device, _ in decision.settled] == [A, B, C]


def test_a_newcomer_does_not_extend_a_round_and_is_in_the_next_one() -> None:
    made = barrier(A, B)
    offer(made, A)
    assert not made.enters(D, 1.0)
    assert made.reconsider(1.0) == WAIT
    assert weights(offer(made, B)).keys() == {A, B}
    assert made.merged((A, B, D), 2.0) == (D,)
    made.check()
    for device in (A, B):
        assert offer(made, device, based_on=1, version=1) == WAIT
    assert weights(offer(made, D, based_on=1, version=1)).keys() == {A, B, D}


def test_whoever_comes_during_the_merge_is_in_the_next_round() -> None:
    made = barrier(A)
    offer(made, A)
    assert not made.enters(B, 1.0)
    made.check()
    assert made.merged((A, B), 2.0) == (B,)
    assert offer(made, A, based_on=1, version=1) == WAIT


def test_an_update_for_an_earlier_barrier_is_refused_and_its_device_is_in_the_next_round() -> None:
    made = barrier(A)
    decision = offer(made, D, based_on=1, version=2)
    assert decision.refused
    assert decision.refresh == ()  # it is answered when the round is over
    offer(made, A, based_on=2, version=2)
    assert made.merged((A, D), 1.0) == (D,)


def test_where_there_is_no_round_a_refused_device_begins_one() -> None:
    made = barrier(A)
    leaves(made, A)
    assert offer(made, D, based_on=1, version=2).refused
    assert made.reconsider(1.0).begins == (D,)


# ---- devices that leave ------------------------------------------------------------------------


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


# ---- time --------------------------------------------------------------------------------------


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


def test_a_device_in_two_places_is_noticed() -> None:
    made = barrier()
    made._absent[A] = None
    with pytest.raises(InvariantBroken, match="two places"):
        made.check()


# ---- whatever happens ----------------------------------------------------------------------------


@given(
    on_leave=st.sampled_from(["drop", "wait"]),
    story=st.lists(
        st.tuples(
            st.sampled_from(["joins", "leaves", "hands in", "time"]), st.sampled_from("abcd")
        ),
        max_size=80,
    ),
)
def test_a_round_waits_for_no_newcomer_and_everybody_who_hands_in_is_answered(
    on_leave: str, story: list[tuple[str, str]]
) -> None:
    made = Barrier(on_leave=on_leave, timeout=10.0)  # type: ignore[arg-type]
    made.planned(1.0, 0.0)
    version, now = 0, 0.0
    there: dict[NodeId, int | None] = {}  # the version it trains; None: it waits for a model

    def carry_out(decision: Decision) -> None:
        nonlocal version
        made.check()
        for device in (*decision.begins, *(() if decision.merge else decision.refresh)):
            there[device] = version
        if decision.merge is not None:
            version += 1
            for device in (*made.merged(there, now), *decision.refresh):
                if device in there:
                    there[device] = version
            made.check()

    def hand_in(device: NodeId) -> None:
        trained, there[device] = there[device], None
        assert trained is not None
        members = set(made._missing)
        carry_out(offer(made, device, based_on=trained, version=version, now=now))
        assert trained != version or set(made._missing) <= members
        carry_out(made.reconsider(now))

    for what, name in story:
        device = NodeId(name)
        if what == "joins" and device not in there:
            there[device] = None
            waited_for = dict(made._missing)
            if made.enters(device, now):
                there[device] = version
            assert made._missing.keys() <= waited_for.keys()
        elif what == "leaves" and device in there:
            del there[device]
            made.left(device, now)
        elif what == "hands in" and there.get(device) is not None:
            hand_in(device)
        elif what == "time":
            now += 11.0
        carry_out(made.reconsider(now))
    kept = [device for device in made._pool if device not in there]
    for device in (*made._away, *kept):  # in the end they are back
        there[device] = None
        assert made.enters(device, now) == (device not in kept)
        there[device] = None if device in kept else version
    for _ in range(2):
        for device in [d for d, trained in there.items() if trained is not None]:
            if there[device] is not None:
                hand_in(device)
    assert not there or None not in there.values()
