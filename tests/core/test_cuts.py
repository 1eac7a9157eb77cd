"""Which cut a device has, how old the parts of its model are, and when it is planned for again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedoptima.core.serializable_types  # noqa: F401  (makes every core class known by name)
from fedoptima.core.aggregation import AsyncStaleness, Offer
from fedoptima.core.cuts import ROUNDS, Cuts
from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.jobs import CutMerge
from fedoptima.core.messages import Join, ModelUpdate
from fedoptima.core.plan import BlockProfile, Cut, Plan
from fedoptima.core.serialization import freeze, thaw
from fedoptima.core.types import NodeId, Payload, PayloadId

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
DATA = Payload(PayloadId("b/0/1"), 10)


def block(name: str, flops: float, nbytes: int) -> BlockProfile:
    return BlockProfile(name, flops, 2 * flops, nbytes, nbytes, 10, 40)


EXTRA = block("auxiliary", 5, 0)
BLOCKS = (block("a", 10, 400), block("b", 90, 100), block("c", 100, 50), block("d", 10, 4))
CUTS = (Cut(1, 10, EXTRA), Cut(2, 100, EXTRA), Cut(3, 200, EXTRA))
PLAN = Plan(BLOCKS, 1, "default", EXTRA, "paper", (), cuts=CUTS)
RELIEVING = replace(PLAN, sample_seconds=0.5)


def join(speed: float, link: float, **changes: object) -> Join:
    return replace(Join(0, 100, speed, link), **changes)  # type: ignore[arg-type]


def update(cut: int, *, speed: float = 100.0, link: float = 0.0) -> ModelUpdate:
    """Of a device that computes at this speed."""
    forward = sum(own.forward_flops for own in BLOCKS[:cut])
    work = 100 * (3 * forward + EXTRA.forward_flops + EXTRA.backward_flops)
    return ModelUpdate(0, 100, DATA, 0, cut, work / speed, link)


def test_every_device_has_the_cut_that_is_best_for_it_alone() -> None:
    cuts = Cuts(PLAN)
    assert cuts.joined(A, join(100, 4000)) == 1
    assert cuts.joined(B, join(1000, 1000)) == 2
    assert cuts.joined(C, join(1000, 250)) == 3


def test_a_device_takes_as_many_blocks_as_it_manages_in_the_plans_time() -> None:
    cuts = Cuts(RELIEVING)
    assert cuts.joined(A, join(100, 4000)) == 1  # 1 s with two blocks, and 2 s with three
    assert cuts.joined(B, join(500, 4000)) == 3  # 0.4 s, where one block would take 0.1 s
    assert cuts.joined(C, join(250, 4000)) == 2
    assert cuts.joined(C, join(10, 100)) == 1  # too slow for any: the quickest


def test_a_device_that_comes_back_with_work_keeps_the_cut_of_that_work() -> None:
    cuts = Cuts(PLAN)
    assert cuts.joined(A, join(100, 4000, training=True, cut=3)) == 3
    assert cuts.joined(A, join(100, 4000, training=True, cut=7)) == 1  # of another plan
    assert cuts.joined(A, join(100, 4000, cut=3)) == 1


def test_the_plan_of_a_cut_is_one_with_that_cut_alone() -> None:
    cuts = Cuts(RELIEVING)
    for split in cuts.splits:
        plan = Plan.from_json(cuts.plan_of(split))
        assert (plan.split, plan.cuts, plan.sample_seconds) == (split, (), 0.0)
        assert plan.server_blocks == BLOCKS[split:]


@pytest.mark.parametrize("plan", [PLAN, RELIEVING])
def test_a_plan_with_cuts_is_read_back_as_it_was(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


def test_a_message_of_a_cut_that_was_not_assigned_is_refused() -> None:
    cuts = Cuts(PLAN)
    cuts.joined(A, join(100, 4000))
    cuts.check_update(A, update(1))
    with pytest.raises(ProtocolViolation, match="cut 2, not of 1"):
        cuts.check_update(A, update(2))
    cuts.check_batch(A, 3)  # from before a new plan
    with pytest.raises(ProtocolViolation, match="cut 0"):
        cuts.check_batch(A, 0)


# ---- how old each part is ------------------------------------------------------------------------


def test_a_block_is_merged_over_those_who_hold_it_and_the_server_is_one_of_them() -> None:
    cuts = Cuts(PLAN)
    cuts.sent(C)
    for cut in (1, 1, 2, 3):
        cuts.merged(cut, 1.0)
    # Four merges in all; two of them hold the second part, one the third and the same network.
    assert cuts.ages(C, 3, 4.0) == (4.0, 2.0 + 1, 1.0 + 1, 1.0)


@given(st.lists(st.sampled_from([1, 2, 3]), max_size=20), st.sampled_from([1, 2, 3]))
def test_no_part_is_older_than_the_whole_but_for_the_server(merges: list[int], cut: int) -> None:
    cuts = Cuts(PLAN)
    cuts.sent(A)
    for merged in merges:
        cuts.merged(merged, 1.0)
    first, *later, own = cuts.ages(A, cut, float(len(merges)))
    assert first == len(merges)  # all devices hold the first blocks
    holders = [sum(merged >= split for merged in merges) for split in range(2, cut + 1)]
    assert later == [count + 1 for count in holders]
    assert own == merges.count(cut)  # auxiliary networks merge among equal cuts only


def test_what_a_device_merged_before_it_was_sent_a_model_does_not_count() -> None:
    cuts = Cuts(PLAN)
    cuts.merged(2, 5.0)
    cuts.sent(B)
    assert cuts.ages(B, 2, 0.0) == (0.0, 1.0, 0.0)


def test_each_part_of_an_update_is_weighed_by_its_own_age() -> None:
    offer = Offer(C, update(3), 100, 4, 0.0, age=4.0, ages=(4.0, 3.0, 1.0, 0.0))
    merge = AsyncStaleness(100).offer(offer).merge
    assert isinstance(merge, CutMerge)
    assert merge.weights == (1 / 5, 1 / 4, 1 / 2, 1.0)
    assert (merge.cut, merge.parts[0].weight, merge.keep) == (3, 1 / 5, 4 / 5)


# ---- another plan --------------------------------------------------------------------------------


def test_a_link_that_halves_for_good_gives_a_device_another_cut() -> None:
    cuts = Cuts(PLAN)
    assert cuts.joined(B, join(1000, 1000)) == 2
    for _ in range(ROUNDS - 1):
        cuts.measured(B, update(2, speed=1000, link=400))
        assert not cuts.replan(B)
    cuts.measured(B, update(2, speed=1000, link=400))
    assert "blocks on the device: 3 instead of 2" in cuts.replan(B)
    assert cuts.of(B) == 3
    assert not cuts.replan(B)


def test_a_speed_that_falls_for_good_gives_a_device_another_cut() -> None:
    cuts = Cuts(PLAN)
    assert cuts.joined(B, join(1000, 1000)) == 2
    for _ in range(ROUNDS):
        cuts.measured(B, update(2, speed=100))
    assert "blocks on the device: 1 instead of 2" in cuts.replan(B)


@pytest.mark.parametrize(
    ("speed", "cut"),
    [(190, 1), (210, 2), (410, 2), (450, 3)],  # with two blocks 0.53 and 0.48 s, with three 0.44
)
def test_a_device_whose_speed_changes_has_what_it_then_manages_in_time(
    speed: int, cut: int
) -> None:
    cuts = Cuts(RELIEVING)
    assert cuts.joined(B, join(250, 4000)) == 2
    for _ in range(ROUNDS):
        cuts.measured(B, update(2, speed=speed))
    assert bool(cuts.replan(B)) == (cut != 2)
    assert cuts.of(B) == cut


def test_a_link_that_is_slow_for_a_moment_changes_nothing() -> None:
    cuts = Cuts(PLAN)
    cuts.joined(B, join(1000, 1000))
    for link in (400, 400, 1000, 400, 400, 1000):
        cuts.measured(B, update(2, speed=1000, link=link))
        assert not cuts.replan(B)


def test_a_gain_of_little_is_not_worth_another_plan() -> None:
    cuts = Cuts(PLAN)
    cuts.joined(B, join(1000, 1000))
    for _ in range(ROUNDS):  # 100 / 480 = 0.208 s with two blocks, 0.2 s with three
        cuts.measured(B, update(2, speed=1000, link=480))
    assert not cuts.replan(B)


def test_a_device_that_measures_nothing_is_taken_at_its_word() -> None:
    cuts = Cuts(PLAN)
    cuts.joined(B, join(1000, 1000))
    for _ in range(2 * ROUNDS):
        cuts.measured(B, ModelUpdate(0, 100, DATA, 0, 2))
        assert not cuts.replan(B)


def play(cuts: Cuts, speeds: dict[int, float], rounds: int) -> list[int]:
    """The cuts that B gets, if it computes at these speeds."""
    found = [cuts.of(B)]
    for _ in range(rounds):
        cuts.measured(B, update(cuts.of(B), speed=speeds[cuts.of(B)]))
        if cuts.replan(B):
            found.append(cuts.of(B))
    return found


def test_a_device_that_is_slower_with_another_cut_does_not_go_back_and_forth() -> None:
    cuts = Cuts(PLAN)
    cuts.joined(B, join(1000, 1000))
    assert play(cuts, {1: 1000, 2: 50, 3: 50}, 12 * ROUNDS) == [2, 1, 3, 1]


def test_what_was_measured_outlives_a_connection_until_the_device_claims_another_speed() -> None:
    cuts = Cuts(PLAN)
    assert cuts.joined(B, join(1000, 1000)) == 2
    cuts.measured(B, update(2, speed=100))
    assert cuts.joined(B, join(1000, 1000)) == 1
    assert cuts.joined(A, join(1000, 1000)) == 2
    assert cuts.joined(B, join(2000, 1000)) == 2


def test_what_was_measured_is_in_a_checkpoint() -> None:
    cuts = Cuts(PLAN)
    cuts.joined(B, join(1000, 1000))
    play(cuts, {1: 1000, 2: 50, 3: 50}, 3 * ROUNDS)
    restored = thaw(freeze(cuts))
    assert isinstance(restored, Cuts)
    assert play(restored, {1: 1000, 2: 50, 3: 50}, 4 * ROUNDS) == [1]
    assert freeze(thaw(freeze(cuts))) == freeze(cuts)


def test_a_checkpoint_of_before_speeds_were_kept_is_gone_on_with() -> None:
    old, other = Cuts(PLAN), Cuts(PLAN)
    for cuts in (old, other):
        cuts.joined(B, join(1000, 1000))
        del cuts._speeds
    assert play(old, {1: 1000, 2: 50, 3: 50}, 12 * ROUNDS) == [2, 1, 3, 1]
    assert play(other, {1: 1000, 2: 1000, 3: 1000}, 4 * ROUNDS) == [2]
