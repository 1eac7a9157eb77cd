"""What a device's contributions count, by its share of the data."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.aggregation import AsyncStaleness, Buffered, Decision, DelayLimit, Offer
from fedoptima.core.flow import CappedFlow
from fedoptima.core.influence import EQUAL, Share
from fedoptima.core.jobs import Merge
from fedoptima.core.messages import ActivationBatch, Assignment, GlobalModel
from fedoptima.core.method import Method
from fedoptima.core.scheduler import CounterScheduler
from fedoptima.core.settings import ServerSettings
from fedoptima.core.shares import Shares
from fedoptima.core.staleness import StalenessRule
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import NodeId
from fedoptima.testing.toy import PLAN
from tests.support.bench import ServerBench, payload, running_server, sent, update
from tests.support.rows import Options, fedasync, fl

A, B, TINY = NodeId("a"), NodeId("b"), NodeId("tiny")
THREE = {"a": 600, "b": 600, "tiny": 4}


def shares(**held: int) -> Shares:
    made = Shares()
    for device, samples in held.items():
        made.add(NodeId(device), samples)
    return made


def offer(
    policy: AsyncStaleness | Buffered,
    share: Share,
    *,
    device: NodeId = A,
    age: float = 0.0,
    missed: float = 0.0,
    version: int = 0,
) -> Decision:
    handed_in = update(f"{device}/0/1")
    return policy.offer(Offer(device, handed_in, 1, version, 0.0, share, age=age, missed=missed))


def weight(decision: Decision) -> float:
    assert decision.merge is not None
    return sum(part.weight for part in decision.merge.parts)


# ---- shares ------------------------------------------------------------------------------------


def test_shares_that_differ_by_less_than_a_batch_are_equal() -> None:
    assert shares(a=149, b=100).share(A, 50) is EQUAL
    assert shares(a=150, b=100).share(A, 50) != EQUAL


def test_a_share_is_relative_to_the_mean_of_the_devices_in_the_run() -> None:
    held = shares(**THREE)
    assert held.share(A, 50).size == pytest.approx(600 * 3 / 1204)
    assert held.share(TINY, 50).size == pytest.approx(4 * 3 / 1204)
    held.remove(TINY)
    assert held.share(A, 50) is EQUAL


def test_a_tiny_device_is_limited_to_few_times_its_share_and_others_are_not() -> None:
    held = shares(**THREE)
    assert held.share(A, 50).limit == 1
    assert 4 * 4 / 604 < held.share(TINY, 50).limit < 4.1 * 4 / 604


def test_the_small_devices_can_go_on_by_themselves_while_the_largest_is_silent() -> None:
    held = shares(a=40, b=60, c=50, large=400)
    assert sum(held.share(NodeId(device), 1).limit for device in "abc") >= 1


def test_rounds_of_small_batches_count_less() -> None:
    assert shares(**THREE).share(TINY, 50).batch == 4 / 50
    assert shares(**THREE).share(A, 50).batch == 1


# ---- rounds ------------------------------------------------------------------------------------


def begun(
    method: Method, held: Mapping[str, int], **settings: object
) -> tuple[ServerBench, dict[NodeId, int]]:
    """A server that has begun with these devices, and the iterations it gave them."""
    given = {"stop": StopRule(rounds=1000), "devices": len(held), "batch_size": 50} | settings
    bench = ServerBench(method, ServerSettings(**given))  # type: ignore[arg-type]
    for name, samples in held.items():
        bench.joins(name, samples=samples)
    effects = bench.done(text=PLAN)
    return bench, {device: message.iterations for device, message in sent(effects, Assignment)}


def merged_weight(bench: ServerBench) -> float:
    """Of the merge that is running."""
    assert bench.running is not None
    assert isinstance(bench.running.job, Merge)
    (part,) = bench.running.job.parts
    return part.weight


def test_without_a_barrier_all_rounds_have_as_many_iterations() -> None:
    _, iterations = begun(fedasync(), THREE)
    assert iterations == {A: 8, B: 8, TINY: 8}


def test_shares_that_count_as_equal_have_rounds_of_one_pass_as_before() -> None:
    _, iterations = begun(fedasync(), {"a": 149, "b": 151})
    assert iterations == {A: 2, B: 3}


def test_a_run_that_began_with_nobody_has_rounds_of_the_first_device() -> None:
    bench = ServerBench(fedasync(), ServerSettings(StopRule(rounds=9), batch_size=50))
    bench.joins("b", samples=80)
    bench.leaves("b")
    bench.done(text=PLAN)
    bench.joins("a", samples=600)
    ((_, assignment),) = sent(bench.joins("tiny", samples=4), Assignment)
    assert assignment.iterations == 12


def test_behind_a_barrier_a_round_is_one_pass_over_the_devices_own_samples() -> None:
    _, iterations = begun(fl(), THREE)
    assert iterations == {A: 12, B: 12, TINY: 1}


# ---- merges ------------------------------------------------------------------------------------


def test_a_small_share_scales_the_weight_down() -> None:
    policy = AsyncStaleness(8)
    assert weight(offer(policy, Share(0.25), age=1.0)) == 0.25 / 2


def test_a_large_share_weighs_as_in_fedavg() -> None:
    """n / (n + what was merged since): here 3 against 1.5 mean shares."""
    assert weight(offer(AsyncStaleness(8), Share(3.0), age=1.5)) == 3 / 4.5


@given(
    size=st.floats(1e-4, 100),
    age=st.floats(0, 1e4),
    kind=st.sampled_from(["inverse", "constant", "polynomial", "hinge"]),
)
def test_a_mixing_weight_never_exceeds_one(size: float, age: float, kind: str) -> None:
    rule = StalenessRule(kind)  # type: ignore[arg-type]
    assert 0 < weight(offer(AsyncStaleness(10**6, rule), Share(size), age=age)) <= 1


@given(st.lists(st.floats(1e-3, 20), min_size=1, max_size=40), st.integers(1, 10))
def test_the_weights_of_a_buffer_sum_to_at_most_one(sizes: list[float], buffer: int) -> None:
    policy = Buffered(buffer, 8)
    decisions = [offer(policy, Share(size)) for size in sizes]
    merges = [decision for decision in decisions if decision.merge is not None]
    assert all(0 < weight(decision) <= 1 + 1e-9 for decision in merges)


def test_a_buffer_of_two_large_deltas_does_not_wait_for_a_tiny_one() -> None:
    policy = Buffered(3, 8)
    share = shares(**THREE).share(A, 50)
    assert offer(policy, share).merge is None
    assert weight(offer(policy, share, device=B)) == pytest.approx(1, abs=0.01)


def test_a_device_that_hands_in_often_is_held_to_its_limit() -> None:
    policy, share = AsyncStaleness(8), shares(**THREE).share(TINY, 50)
    total = sum(weight(offer(policy, share, device=TINY)) for _ in range(10_000))
    assert 0 < total <= share.limit / (1 - share.limit) + 1e-9


def test_merges_of_little_data_do_not_age_the_updates_of_others() -> None:
    bench, _ = begun(fedasync(), THREE)
    for version in range(20):
        bench.says("tiny", update(f"tiny/0/{version}", version=version))
        bench.done()
    bench.says("a", update("a/0/1"))
    assert merged_weight(bench) > 0.9  # by versions it would be 1 / 21


def test_of_two_devices_the_tiny_one_does_not_take_over_by_its_short_rounds() -> None:
    """A device of 600 is believed to hold 40; at equal speed 12 rounds of 4 take as long as one."""
    held, policy = shares(a=600, b=4), AsyncStaleness(8)
    quick = [offer(policy, held.share(B, 50), device=B, age=0.01) for _ in range(12)]
    age = sum(decision.size for decision in quick)
    slow = offer(policy, held.share(A, 50), device=A, age=age)
    assert sum(map(weight, quick)) < 0.2 * weight(slow)


# ---- the delay limit ---------------------------------------------------------------------------


def test_a_device_that_was_there_all_the_time_is_never_refused_by_default() -> None:
    policy = AsyncStaleness(DelayLimit(16, while_away=True))
    assert not offer(policy, EQUAL, age=1e6, version=10**6).refused


def test_what_was_merged_during_an_absence_is_limited_by_default() -> None:
    policy = AsyncStaleness(DelayLimit(16, while_away=True))
    assert not offer(policy, EQUAL, age=1e6, missed=16.0, version=10**6).refused
    assert offer(policy, EQUAL, age=1e6, missed=17.0, version=10**6).refused


def test_a_limit_that_was_given_counts_every_merge_as_in_the_paper() -> None:
    assert offer(AsyncStaleness(16), EQUAL, age=17.0, version=17).refused


def test_merges_during_several_short_absences_add_up_and_end_with_the_next_model() -> None:
    bench = running_server(fedasync(Options(max_delay=3)), "a", "b")
    missed = bench.server.training.models.age
    for round_ in range(2):
        bench.leaves("a")
        bench.says("b", update(f"b/0/{round_}", version=round_))
        bench.done()
        bench.joins("a", training=True, version=0)
        assert missed.missed(A) == round_ + 1
    bench.says("a", update("a/0/1", version=0))
    bench.done()
    assert missed.missed(A) == 0


# ---- activations -------------------------------------------------------------------------------


def test_batches_that_wait_are_used_in_proportion_to_the_shares() -> None:
    scheduler = CounterScheduler()
    held = shares(a=300, b=100)
    for device in (A, B):
        scheduler.join(device)
        for seq in range(40):
            scheduler.put(
                device, ActivationBatch(seq, payload(f"{seq}")), 1 / held.share(device, 50).size
            )
    served = [device for device, _ in iter(scheduler.get, None)][:40]
    assert served.count(A) == 30


def test_with_slots_to_spare_a_tiny_device_still_sends_little() -> None:
    held = shares(**THREE)
    flow = CappedFlow(32)
    on = {device for d in (A, B, TINY) for device in flow.joined(d, 0.0, held.share(d, 50))}
    sent_by: dict[NodeId, int] = dict.fromkeys((A, B, TINY), 0)
    # The tiny one asks ten times as often.
    for device in islice(cycle([A, *[TINY] * 10, B, *[TINY] * 10]), 6000):
        if device in on:
            on.remove(device)
            sent_by[device] += 1
            on |= set(flow.received(device, 0.0, held.share(device, 50)).turn_on)
            on |= set(flow.consumed(device, 0.0))
            flow.check(0)
    assert sent_by[A] == sent_by[B]
    limit = held.share(TINY, 50).limit
    assert 1 <= sent_by[TINY] <= 1 + limit * sum(sent_by.values())


def test_a_held_device_goes_on_when_those_it_waited_for_have_left() -> None:
    held = shares(**THREE)
    flow = CappedFlow(32)
    for device in (A, B, TINY):
        flow.joined(device, 0.0, held.share(device, 50))
    assert flow.received(TINY, 0.0, held.share(TINY, 50)).turn_on == []
    assert flow.left(A, 0, 0.0) == []
    assert flow.left(B, 0, 0.0) == [TINY]


# ---- progress ----------------------------------------------------------------------------------


def test_many_passes_over_little_data_are_no_epochs() -> None:
    bench, _ = begun(fedasync(), THREE, stop=StopRule(epochs=2))
    for version in range(1000):
        bench.says("tiny", update(f"tiny/0/{version}", version=version, trained=8))
        bench.done()
    assert bench.server.progress.epochs < 0.05  # by samples it would be 6.6
    assert bench.server.progress.rounds < 10


def test_a_newcomer_with_another_share_counts_by_it() -> None:
    bench, _ = begun(fedasync(), {"a": 600, "b": 600})
    effects = bench.joins("tiny", samples=4)
    ((_, assignment),) = sent(effects, Assignment)
    assert assignment.iterations == 12  # as long as the rounds of the others
    assert [to for to, _ in sent(effects, GlobalModel)] == [TINY]
    bench.says("tiny", update("tiny/0/1"))
    assert merged_weight(bench) < 0.02
