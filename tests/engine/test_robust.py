"""Robust merging against the same figures worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from fedoptima.core.jobs import Part, RobustMerge
from fedoptima.core.robust import RobustBarrier
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.merging import choose
from fedoptima.engine.robust import FAR, RobustMerging, Update, median_of_others, middle
from fedoptima.engine.robustness import Robustness

SIZE = 50
BASE = {"weight": torch.zeros(SIZE), "mean": torch.ones(3), "count": torch.tensor(4)}
FORWARD = torch.ones(SIZE)


def update(device: str, change: Tensor, mean: float = 0.1, *, weight: float = 0.25) -> Update:
    tensors = {
        "weight": BASE["weight"] + change,
        "mean": BASE["mean"] + mean,
        "count": torch.tensor(9),
    }
    return Update(NodeId(device), weight, tensors, BASE)


def honest(*lengths: float) -> list[Update]:
    """Changes that point about the same way."""
    generator = torch.Generator().manual_seed(0)
    return [
        update(f"d{n}", length * (FORWARD + 0.3 * torch.randn(SIZE, generator=generator)))
        for n, length in enumerate(lengths)
    ]


def merging(kind: RobustBarrier) -> RobustMerging:
    return RobustMerging(kind, {"weight"}, BASE)


def refused(updates: list[Update]) -> dict[int, str]:
    robust = merging("refuse")
    robust.see(updates)
    return robust.refusals(updates)


@given(st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=9), st.data())
def test_the_median_of_the_others_is_the_median_without_the_own(
    values: list[float], data: st.DataObject
) -> None:
    all_of_them = torch.tensor(values)
    own = data.draw(st.integers(0, len(values) - 1))
    others = torch.cat([all_of_them[:own], all_of_them[own + 1 :]])
    found = median_of_others(all_of_them[own], all_of_them.sort(dim=0).values)
    assert found == pytest.approx(float(others.quantile(0.5)), abs=1e-5)
    assert middle(all_of_them) == pytest.approx(float(all_of_them.quantile(0.5)), abs=1e-5)


def test_a_change_is_clipped_to_the_fleets_median_and_shorter_ones_stay_bit_for_bit() -> None:
    updates = honest(1, 1, 1, 3)
    robust = merging("clip")
    robust.see(updates)
    parts = robust.parts(updates)
    norms = [float(u.tensors["weight"].norm()) for u in updates]
    median = float(middle(torch.tensor(norms)))
    assert float(parts[3][1]["weight"].norm()) == pytest.approx(median)
    for update, norm, (_, tensors) in zip(updates, norms, parts, strict=True):
        if norm <= median:
            assert torch.equal(tensors["weight"], update.tensors["weight"])
        assert int(tensors["count"]) == 9


def test_buffers_are_clipped_by_their_own_median() -> None:
    updates = [*honest(1, 1, 1), update("d3", FORWARD, mean=100.0)]
    robust = merging("clip")
    robust.see(updates)
    _, tensors = robust.parts(updates)[3]
    assert torch.allclose(tensors["mean"], torch.tensor(1.1))


def test_handed_in_changes_are_clipped_themselves() -> None:
    deltas = [
        Update(u.device, u.weight, u.tensors, {**BASE, "weight": torch.full((SIZE,), 7.0)}, True)
        for u in honest(1, 1, 1, 3)
    ]
    robust = merging("clip")
    robust.see(deltas)
    median = middle(torch.stack([u.tensors["weight"].norm() for u in deltas]))
    assert torch.allclose(robust.parts(deltas)[3][1]["weight"].norm(), median)


def test_an_update_that_moves_against_the_fleet_is_refused() -> None:
    found = refused([*honest(1, 1, 1, 1, 1, 1), update("h1", -FORWARD), update("h2", -2 * FORWARD)])
    assert found.keys() == {6, 7}
    assert "against the fleet" in found[6]


def test_an_update_that_changes_far_more_than_usual_is_refused() -> None:
    found = refused([*honest(1, 1, 1, 1, 1), update("far", 2 * FAR * FORWARD)])
    assert found.keys() == {5}
    assert "times as much as usual" in found[5]
    buffers = refused([*honest(1, 1, 1, 1, 1), update("far", FORWARD, mean=50.0)])
    assert buffers.keys() == {5}


def test_an_update_that_is_not_a_number_is_refused() -> None:
    assert refused([*honest(1, 1, 1, 1, 1), update("nan", FORWARD * torch.nan)]).keys() == {5}


def test_a_fleet_without_a_common_direction_refuses_nobody() -> None:
    generator = torch.Generator().manual_seed(1)
    apart = [update(f"d{n}", torch.randn(SIZE, generator=generator)) for n in range(8)]
    assert refused(apart) == {}


def test_among_three_devices_there_is_no_majority_to_compare_with() -> None:
    assert refused([*honest(1, 1), update("h", -100 * FORWARD)]) == {}


@example(lengths=[1.0, 1.0, 4.0, 4.0, 0.0], seed=398)
@given(st.lists(st.floats(-100, 100), min_size=4, max_size=9), st.integers(0, 1000))
def test_at_least_half_of_any_fleet_is_accepted(lengths: list[float], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    fleet = [
        update(f"d{n}", length * torch.randn(SIZE, generator=generator))
        for n, length in enumerate(lengths)
    ]
    assert 2 * len(refused(fleet)) <= len(fleet)


def test_a_device_has_one_vote_however_often_it_hands_in() -> None:
    robust = merging("refuse")
    robust.see(honest(1, 1, 1, 1, 1))
    for _ in range(20):
        robust.see([update("h", -FORWARD)])
    assert robust.refusals([update("h", -FORWARD)]).keys() == {0}
    assert robust.refusals(honest(1)) == {}


def weakly(direction: float, devices: list[str], generator: torch.Generator) -> list[Update]:
    """Changes that have little in common: each is mostly its own."""
    return [
        update(name, 0.35 * direction * FORWARD + torch.randn(SIZE, generator=generator))
        for name in devices
    ]


HONEST, HOSTILE = [f"d{n}" for n in range(6)], ["h1", "h2"]


def watched(rounds: int) -> tuple[RobustMerging, torch.Generator]:
    generator = torch.Generator().manual_seed(3)
    robust = merging("refuse")
    for _ in range(rounds):
        robust.see([*weakly(1, HONEST, generator), *weakly(-1, HOSTILE, generator)])
    return robust, generator


def test_a_device_that_moves_a_little_against_the_fleet_again_and_again_is_refused() -> None:
    robust, generator = watched(rounds=20)
    last = [*weakly(1, HONEST, generator), *weakly(-1, HOSTILE, generator)]
    robust.see(last)
    found = robust.refusals(last)
    assert found.keys() == {6, 7}
    assert "against the fleet" in found[7]


def test_a_device_is_taken_back_when_it_moves_with_the_fleet() -> None:
    robust, generator = watched(rounds=20)
    for _ in range(20):
        last = weakly(1, [*HONEST, *HOSTILE], generator)
        robust.see(last)
    assert robust.refusals(last) == {}


def test_what_is_known_of_the_devices_is_part_of_a_checkpoint() -> None:
    robust, generator = watched(rounds=20)
    restored = merging("refuse")
    restored.restore(*robust.save())
    last = weakly(-1, HOSTILE, generator)
    for one in (robust, restored):
        one.see(last)
    assert restored.refusals(last) == robust.refusals(last)
    assert len(restored.refusals(last)) == 2


def test_a_trimmed_mean_leaves_out_a_quarter_at_each_end_and_a_median_all_but_the_middle() -> None:
    values = [-1000.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0]
    updates = [update(f"d{n}", value * FORWARD) for n, value in enumerate(values)]
    (share, trimmed), *_ = merging("trimmed_mean").parts(updates)
    assert share == 2.0  # of eight times a quarter
    assert torch.equal(trimmed["weight"], 3.5 * FORWARD)
    ((_, median),) = merging("median").parts(updates)
    assert torch.equal(median["weight"], 3.5 * FORWARD)
    assert int(median["count"]) == 9


def test_a_barriers_weights_add_up_to_one_without_the_refused() -> None:
    robustness = Robustness("refuse")
    robustness.watch({"weight"}, BASE)
    fleet = [
        *(update(u.device, u.tensors["weight"], weight=1 / 7) for u in honest(1, 1, 1, 1, 1)),
        update("h", -FORWARD, weight=1 / 7),
        update("faulty", FORWARD, weight=1 / 7),
    ]
    nothing = Payload(PayloadId("x"), 0)
    parts = tuple(Part(u.device, u.weight, nothing) for u in fleet)
    found, (chosen,) = choose(RobustMerge(0.0, parts, ()), [fleet], {6}, robustness)
    assert found.keys() == {5}
    assert len(chosen) == 5
    assert sum(weight for weight, _ in chosen) == pytest.approx(1.0)


def test_what_is_kept_of_weights_that_train_holds_no_graph() -> None:
    robustness = Robustness("refuse")
    robustness.watch({"weight"}, BASE)
    weights = [u.tensors["weight"].clone().requires_grad_() for u in honest(1, 1, 1, 1, 3)]
    fleet = [update(f"d{n}", weight) for n, weight in enumerate(weights)]
    _, (parts,) = robustness.select([fleet])
    _, kept = robustness.save()
    assert not any(tensor.requires_grad for tensor in kept.values())
    assert not parts[-1][1]["weight"].requires_grad
