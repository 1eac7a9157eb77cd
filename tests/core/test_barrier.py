"""A barrier: who is in a round, when it opens, and with which weights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.aggregation import WAIT, Decision
from fedoptima.core.barrier import Barrier
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.types import NodeId
from tests.core.barriers import A, B, C, D, barrier, leaves
from tests.core.offers import offer, weights


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


def test_a_device_in_two_places_is_noticed() -> None:
    made = barrier()
    made._absent[A] = None
    with pytest.raises(InvariantBroken, match="two places"):
        made.check()


@given(
    on_leave=st.sampled_from(["drop", "keep", "wait"]),
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
    made = Barrier(on_leave=on_leave, timeout=10.0, folds=True)  # type: ignore[arg-type]
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
