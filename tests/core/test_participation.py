"""A share of the devices in each round: drawn by lot, the same lots everywhere."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

import fedoptima.core.serializable_types  # noqa: F401  (makes every core class known by name)
from fedoptima.core.barrier import Barrier
from fedoptima.core.errors import ConfigError
from fedoptima.core.jobs import Merge
from fedoptima.core.serialization import freeze, thaw
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.methods.registry import METHODS
from fedoptima.testing.world import Description, Device, World
from tests.core.offers import offer
from tests.experiments.runs import run

BARRIERS = ("fl", "splitfed", "pipar", "cse_fsl")
EVERY = pytest.mark.parametrize("name", BARRIERS)


def rounds(world: World) -> list[tuple[NodeId, ...]]:
    """Who was merged, round by round."""
    merges = (run.job for run in world.jobs(SERVER, Merge))
    return [tuple(p.device for p in merge.parts) for merge in merges if isinstance(merge, Merge)]


def played(name: str, participation: float, devices: int = 8, count: int = 12) -> World:
    method = METHODS[name](devices, participation=participation)
    world = World(Description(method, [Device()] * devices, stop=StopRule(rounds=count)))
    world.run()
    return world


@EVERY
@pytest.mark.parametrize(("share", "members"), [(0.25, 2), (0.5, 4), (0.01, 1), (0.99, 8)])
def test_so_many_devices_are_in_every_round(name: str, share: float, members: int) -> None:
    merged = rounds(played(name, share))
    assert {len(devices) for devices in merged} == {members}
    if members < 8:
        assert len(set(merged)) > 1, "the same devices every time"


def test_in_the_long_run_everybody_is_drawn_about_as_often() -> None:
    merged = rounds(played("fl", 0.25, count=200))
    often = Counter(device for devices in merged for device in devices)
    assert len(often) == 8
    assert max(often.values()) < 2 * min(often.values())


def test_an_epoch_is_as_many_samples_as_all_devices_hold() -> None:
    half, whole = (played("fl", share, count=4).server.progress.epochs for share in (0.5, 1.0))
    assert half == pytest.approx(whole / 2)


def test_the_lots_depend_on_the_seed_alone() -> None:
    def drawn(seed: int, names: str) -> list[tuple[NodeId, ...]]:
        policy = Barrier(participation=0.5)
        policy.planned(0.0, 0.0, seed)
        found = []
        for _ in range(4):
            for name in names:
                policy.enters(NodeId(name), 0.0)
            found.append(policy.reconsider(0.0).begins)
            for name in names:
                policy.left(NodeId(name), 0.0)
        return found

    assert drawn(1, "abcdef") == drawn(1, "fedcba")
    assert drawn(1, "abcdef") != drawn(2, "abcdef")
    assert any(one != other for one, other in pairwise(drawn(1, "abcdef")))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0 and at most 1"):
        run(method={"name": "fl", "participation": share})


def test_members_that_leave_make_room_for_those_who_wait() -> None:
    policy = Barrier(participation=0.5)
    devices = [NodeId(name) for name in "ab"]
    for device in devices:
        policy.enters(device, 0.0)
    (first,) = policy.reconsider(0.0).begins
    policy.left(first, 1.0)
    policy.check()
    (second,) = policy.reconsider(1.0).begins
    assert {first, second} == set(devices)


def test_a_member_that_hangs_is_not_waited_for_for_ever() -> None:
    policy = Barrier(participation=0.5, timeout=5.0)
    for name in "ab":
        policy.enters(NodeId(name), 0.0)
    (first,) = policy.reconsider(0.0).begins
    assert policy.deadline == 5.0
    decision = policy.reconsider(5.0)
    policy.check()
    assert decision.late == (first,)
    assert first not in decision.begins
    assert len(decision.begins) == 1


@pytest.mark.parametrize("seed", range(20))  # with most it is drawn
def test_a_device_back_from_a_merge_that_failed_hands_in_though_it_was_not_drawn(seed: int) -> None:
    made = Barrier(participation=0.5)
    made.planned(0.0, 0.0, seed)
    for device in "abc":
        made.enters(NodeId(device), 0.0)
    (first, second) = made.reconsider(0.0).begins
    made.left(second, 0.0)  # its connection breaks, and the other's update is merged without it
    assert offer(made, first).merge is not None
    made.returned(second, 0.0, current=True)
    made.merged({NodeId(device): None for device in "abc"}, 0.0)  # and that has failed
    offer(made, second)  # of the same version; looks at the barrier's invariants


def test_without_it_nothing_changes() -> None:
    assert rounds(played("fl", 1.0)) == [tuple(f"d{i}" for i in range(8))] * 12


def test_a_barrier_of_a_checkpoint_from_before_has_all_devices_in_its_rounds() -> None:
    name, state = freeze(Barrier())  # type: ignore[misc]
    older = {key: value for key, value in state.items() if key not in ("participation", "_seed")}
    policy = thaw([name, older])
    assert isinstance(policy, Barrier)
    for device in "abc":
        policy.enters(NodeId(device), 0.0)
    assert policy.reconsider(0.0).begins == ("a", "b", "c")
