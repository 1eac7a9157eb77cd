from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.errors import ConfigError
from fedoptima.core.plan import BlockProfile, Objective
from fedoptima.preprocess.split import DeviceSpeed, Profile, choose_split


def block(forward: float, output: int, backward: float = 0.0, name: str = "b") -> BlockProfile:
    return BlockProfile(name, forward, backward, output, output, 0, 0)


def a_profile(*blocks: tuple[float, int]) -> Profile:
    return Profile(tuple(block(f, o, name=f"b{i}") for i, (f, o) in enumerate(blocks, start=1)))


positive = st.integers(1, 1000)
profiles = st.lists(st.builds(block, positive, positive, positive), min_size=2, max_size=6).map(
    lambda blocks: Profile(tuple(blocks))
)
fleets = st.lists(st.builds(DeviceSpeed, positive, positive), min_size=1, max_size=5)
auxiliaries = st.dictionaries(st.integers(1, 5), st.builds(block, positive, positive, positive))


@given(profiles, fleets, positive, st.sampled_from(["paper", "measured"]), auxiliaries)
def test_the_choice_is_the_best_of_all_splits(
    profile: Profile,
    fleet: list[DeviceSpeed],
    batch_size: int,
    objective: Objective,
    auxiliary: dict[int, BlockProfile],
) -> None:
    best, best_split = math.inf, 0
    for split in range(1, len(profile.blocks)):
        worst = 0.0
        for device in fleet:
            work = sum(b.forward_flops for b in profile.blocks[:split])
            if objective == "measured":
                work += sum(b.backward_flops for b in profile.blocks[:split])
                if split in auxiliary:
                    work += auxiliary[split].forward_flops + auxiliary[split].backward_flops
            sent = profile.blocks[split - 1].output_bytes
            worst = max(
                worst,
                work * batch_size / device.flops_per_second,
                sent * batch_size / device.bytes_per_second,
            )
        if worst < best:
            best, best_split = worst, split
    choice = choose_split(
        profile, fleet, batch_size=batch_size, objective=objective, auxiliary=auxiliary
    )
    assert choice.split == best_split
    assert choice.table[best_split - 1].bottleneck_seconds == best
    assert [candidate.split for candidate in choice.table] == [*range(1, len(profile.blocks))]


def test_the_table_tells_what_each_split_means_for_its_slowest_device() -> None:
    profile = a_profile((10, 400), (30, 100), (5, 1))
    fleet = [DeviceSpeed(100, 1000), DeviceSpeed(10, 500), DeviceSpeed(1000, 10_000)]
    choice = choose_split(profile, fleet, batch_size=2)
    first, second = choice.table
    assert (first.name, first.device_flops, first.activation_bytes) == ("b1", 20, 800)
    assert (first.train_seconds, first.transfer_seconds) == (2.0, 1.6)
    assert (first.bottleneck_seconds, first.slowest) == (2.0, 1)
    assert (second.name, second.device_flops, second.bottleneck_seconds) == ("b2", 80, 8.0)
    assert choice.split == 1


def test_the_smallest_split_wins_a_tie() -> None:
    profile = a_profile((1, 50), (1, 20), (1, 20), (1, 20))
    assert choose_split(profile, [DeviceSpeed(1e9, 10)], batch_size=1).split == 2


def test_the_server_always_keeps_a_block() -> None:
    profile = a_profile((1, 1000), (1, 1000), (1, 1))
    choice = choose_split(profile, [DeviceSpeed(1e9, 10)], batch_size=1)
    assert choice.split == 1
    assert len(choice.table) == 2


def test_the_paper_counts_forward_alone_and_measured_counts_everything() -> None:
    profile = Profile((block(1, 60, 2), block(1, 10, 2), block(1, 1, 2)))
    fleet = [DeviceSpeed(1, 10)]
    heavy = {2: block(5, 1, 5)}
    assert choose_split(profile, fleet, batch_size=1, auxiliary=heavy).split == 2
    measured = choose_split(profile, fleet, batch_size=1, objective="measured", auxiliary=heavy)
    assert measured.split == 1
    assert [candidate.device_flops for candidate in measured.table] == [3, 16]


def test_of_n_batches_of_a_lean_device_one_needs_more_than_the_forward_pass() -> None:
    profile = Profile((block(1, 60, 2), block(1, 10, 2), block(1, 1, 2)))
    heavy = {2: block(5, 1, 5)}
    tables = {
        objective: choose_split(
            profile,
            [DeviceSpeed(1, 10)],
            batch_size=1,
            objective=objective,
            auxiliary=heavy,
            train_every=4,
        ).table
        for objective in get_args(Objective)
    }
    flops = {name: [cut.device_flops for cut in table] for name, table in tables.items()}
    assert flops == {"paper": [1, 2], "measured": [1 + 2 / 4, 2 + 4 / 4 + 10 / 4]}


def test_a_fixed_split_keeps_the_table() -> None:
    profile = a_profile((1, 50), (1, 20), (1, 20))
    fleet = [DeviceSpeed(1, 10)]
    fixed = choose_split(profile, fleet, batch_size=1, split=1)
    assert fixed.split == 1
    assert fixed.table == choose_split(profile, fleet, batch_size=1).table


@pytest.mark.parametrize("split", [-1, 0, 3, 9])
def test_a_split_beyond_the_model_is_refused_with_the_range_and_the_blocks(split: int) -> None:
    profile = a_profile((1, 50), (1, 20), (1, 20))
    with pytest.raises(ConfigError, match=rf"split.at = {split}: must be from 1 to 2.*b1, b2, b3"):
        choose_split(profile, [DeviceSpeed(1, 1)], batch_size=1, split=split)


def test_a_model_of_one_block_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match=r"only 1 block \(b1\) and cannot be split"):
        choose_split(a_profile((1, 1)), [DeviceSpeed(1, 1)], batch_size=1)


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        ([DeviceSpeed(1, 1), DeviceSpeed(1, -5)], "device 1: .*= -5: both must"),
        ([DeviceSpeed(math.nan, 1)], "device 0: flops_per_second = nan"),
    ],
)
def test_an_impossible_speed_is_refused(fleet: list[DeviceSpeed], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_split(a_profile((1, 1), (1, 1)), fleet, batch_size=1)
