"""The four workloads of the paper keep their split and their auxiliary network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedoptima.config.fleet import FleetConfig
from fedoptima.config.load import load_recipe
from fedoptima.core.method import ServerTraining
from fedoptima.core.ranges import unusual_speeds
from fedoptima.models.registry import build_model
from fedoptima.preprocess.plan import PlanSettings, make_plan
from fedoptima.preprocess.sides import MeasuredCosts
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.sim.fleet import build_fleet, presets

RECIPES = Path(__file__).parents[2] / "recipes"
CIFAR10 = {"channels": 3, "image_size": 32, "classes": 10}
TINY_IMAGENET = {"channels": 3, "image_size": 64, "classes": 200}
SST2 = {"vocabulary": 16_000, "length": 48, "classes": 2}
IMDB = {"vocabulary": 16_000, "length": 256, "classes": 2}


@pytest.mark.parametrize(
    ("recipe_name", "facts", "split", "parameters"),
    [
        ("testbed_a_vgg5_cifar10", CIFAR10, 1, 29_802),
        ("testbed_a_transformer6_sst2", SST2, 1, 61_402),
        ("testbed_b_mobilenet_tinyimagenet", TINY_IMAGENET, 8, 57_880),
        ("testbed_b_transformer12_imdb", IMDB, 1, 61_402),
    ],
)
def test_a_paper_workload_keeps_its_split_and_its_auxiliary_network(
    recipe_name: str, facts: dict[str, int], split: int, parameters: int
) -> None:
    recipe = load_recipe(RECIPES / f"{recipe_name}.toml")
    fleet = build_fleet(recipe.fleet, recipe.seed)
    speeds = [DeviceSpeed(spec.flops_per_second, spec.up) for spec in fleet.devices.values()]
    settings = PlanSettings(
        ServerTraining.SHARED,
        batch_size=recipe.training.batch_size,
        classes=facts["classes"],
        seed=recipe.seed,
        auxiliary="default",
    )
    model = build_model(recipe.model.name, facts, {})
    example = (
        torch.rand(2, facts["channels"], facts["image_size"], facts["image_size"])
        if "channels" in facts
        else torch.ones(2, facts["length"], dtype=torch.long)
    )

    plan = make_plan(MeasuredCosts(model, example, settings), speeds, settings)

    assert plan.auxiliary_profile is not None
    assert (plan.split, plan.auxiliary_profile.parameters) == (split, parameters)


def test_every_recipe_and_every_fleet_is_planned_for_as_a_whole() -> None:
    """What is left out of planning is left out of none of them: each chooses what it did before."""
    described = [load_recipe(path).fleet for path in sorted(RECIPES.glob("*.toml"))]
    described += [FleetConfig(preset=name) for name in presets()]
    fleets = [build_fleet(config, 0) for config in described if config is not None]
    assert len(fleets) >= 9
    for fleet in fleets:
        nodes = fleet.devices.items()
        speeds = {name: DeviceSpeed(spec.flops_per_second, spec.up) for name, spec in nodes}
        assert unusual_speeds(speeds) == {}
