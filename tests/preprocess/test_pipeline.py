from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import BlockProfile
from fedoptima.preprocess.pipeline import (
    BatchTimes,
    batch_times,
    parts_for,
    pipelined_seconds,
    pipelined_split,
)
from fedoptima.preprocess.plan import PlanSettings, make_plan
from fedoptima.preprocess.split import DeviceSpeed, Profile
from fedoptima.preprocess.stored_costs import StoredCosts


def block(name: str, forward: float, backward: float, output: int) -> BlockProfile:
    return BlockProfile(name, forward, backward, output, output // 2, 0, 0)


# The first cut sends much and leaves the device little to do, the third the other way round.
PROFILE = Profile(
    (block("a", 10, 20, 80), block("b", 40, 80, 20), block("c", 90, 90, 10), block("d", 9, 9, 1))
)
QUICK, SLOW = DeviceSpeed(1000.0, 100.0), DeviceSpeed(100.0, 400.0)


def test_the_times_of_a_batch_count_both_sides_and_both_directions() -> None:
    times = batch_times(PROFILE, 2, SLOW, batch_size=10, server_flops_per_second=3960.0)
    assert times == BatchTimes(forward=5.0, up=0.5, server=0.5, down=0.25, backward=10.0)
    unknown = batch_times(PROFILE, 2, SLOW, batch_size=10, server_flops_per_second=None)
    assert unknown.server == 0.0


@pytest.mark.parametrize(
    ("times", "parts"),
    [
        (BatchTimes(1.0, 1.0, 0.5, 1.0, 2.0), 4),  # ceil(2.5 / 1) + 1
        (BatchTimes(2.0, 1.0, 0.5, 1.0, 0.5), 6),  # ceil(2.5 / 0.5) + 1
        (BatchTimes(1.0, 1.0, 0.0, 1.0, 1.0), 3),
        (BatchTimes(1.0, 40.0, 1.0, 40.0, 1.0), 50),  # at most half of the batch of 100
        (BatchTimes(0.0, 1.0, 0.0, 1.0, 0.0), 50),  # nothing to hide it behind
        (BatchTimes(1.0, 0.0, 0.0, 0.0, 1.0), 1),
    ],
)
def test_the_number_of_parts_is_that_of_the_authors_rule(times: BatchTimes, parts: int) -> None:
    assert parts_for([times], 100) == parts


def test_the_device_that_needs_most_parts_decides() -> None:
    few, many = BatchTimes(9.0, 1.0, 1.0, 1.0, 9.0), BatchTimes(1.0, 2.0, 1.0, 2.0, 1.0)
    assert parts_for([few, many], 100) == parts_for([many], 100) == 6
    assert parts_for([few, many], 8) == 4
    assert parts_for([few, many], 1) == 1


seconds = st.floats(0.0, 9.0)


@given(st.builds(BatchTimes, seconds, seconds, seconds, seconds, seconds), st.integers(1, 20))
def test_a_pipelined_batch_is_never_slower_than_one_after_the_other(
    times: BatchTimes, parts: int
) -> None:
    whole = times.forward + times.up + times.server + times.down + times.backward
    assert pipelined_seconds(times, 1) == pytest.approx(whole)
    took = pipelined_seconds(times, parts)
    assert took <= whole + 1e-9
    assert took >= max(times.forward + times.backward, times.up, times.server, times.down) - 1e-9


def test_its_own_split_makes_the_pipelined_batch_of_the_slowest_device_shortest() -> None:
    """Against the rule and the pipeline written down once more."""

    def batch(split: int, device: DeviceSpeed, parts: int) -> float:
        cut, own = PROFILE.blocks[split - 1], PROFILE.blocks[:split]
        step = 10 / parts
        forward = sum(b.forward_flops for b in own) * step / device.flops_per_second
        backward = sum(b.backward_flops for b in own) * step / device.flops_per_second
        up = cut.output_bytes * step / device.bytes_per_second
        down = cut.gradient_bytes * step / device.bytes_per_second
        rest = sum(b.forward_flops + b.backward_flops for b in PROFILE.blocks[split:])
        computed, link, server, back = 0.0, 0.0, 0.0, 0.0
        answers = []
        for _ in range(parts):
            computed += forward
            link = max(link, computed) + up
            server = max(server, link) + rest * step / 2000.0
            back = max(back, server) + down
            answers.append(back)
        for answer in answers:
            computed = max(computed, answer) + backward
        return computed

    def parts(split: int) -> int:
        needed = 1
        for device in (QUICK, SLOW):
            once = batch_times(PROFILE, split, device, batch_size=10, server_flops_per_second=2e3)
            away = once.up + once.server + once.down
            needed = max(needed, math.ceil(away / min(once.forward, once.backward)) + 1)
        return min(needed, 5)

    took = {s: max(batch(s, d, parts(s)) for d in (QUICK, SLOW)) for s in (1, 2, 3)}
    best = min(took, key=lambda split: took[split])
    settings: dict[str, Any] = {"batch_size": 10, "server_flops_per_second": 2000.0}
    assert pipelined_split(PROFILE, [QUICK, SLOW], **settings) == best == 1
    assert pipelined_split(PROFILE, [QUICK], **settings) == 2


def planned(**changes: Any) -> tuple[int, int]:
    settings = PlanSettings(
        ServerTraining.PER_DEVICE, 10, 3, seed=1, server_flops_per_second=2e3, **changes
    )
    plan = make_plan(StoredCosts(PROFILE, ()), [QUICK, SLOW], settings)
    return plan.split, plan.micro_batches


def test_a_plan_has_as_many_parts_as_the_method_says_or_the_rule() -> None:
    assert planned(split=1) == (1, 1)
    assert planned(split=1, micro_batches=3) == (1, 3)
    assert planned(split=1, micro_batches=0) == (1, 5)
    assert planned(split=3, micro_batches=0) == (3, 3)


def test_a_method_with_its_own_split_is_not_bound_by_that_of_the_others() -> None:
    assert planned(micro_batches=0) == (2, 5)
    assert planned(micro_batches=0, own_split=True) == (1, 5)
    assert planned(split=3, own_split=True, micro_batches=2) == (1, 2)
