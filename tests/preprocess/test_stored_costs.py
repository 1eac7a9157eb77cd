"""The stored costs of our own models are what torch measures."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain

import pytest

from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import Objective, Plan
from fedoptima.models.registry import MODELS, build_model
from fedoptima.preprocess.plan import PlanSettings, make_plan
from fedoptima.preprocess.sides import MeasuredCosts
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.preprocess.stored_costs import find_costs
from tools.stored_costs import COSTS, costs_of, datasets_for

SPEEDS = [DeviceSpeed(1e9, 1e6), DeviceSpeed(5e9, 1e5)]


@pytest.mark.parametrize("model", MODELS)
def test_what_is_stored_is_what_torch_measures(model: str) -> None:
    """If this fails: python -m tools.stored_costs --write

    Measuring what is behind every block takes long, and so does counting the bytes that a long text
    moves; the tool compares them all.
    """
    traffic = model != "transformer12"
    stored = json.loads(COSTS.read_text())
    assert list(stored) == list(MODELS)
    for each in stored[model]:
        assert all(
            len(networks) == len(each["blocks"]) - 1 for networks in each["auxiliary"].values()
        )
        each["auxiliary"] = {name: found[:2] for name, found in each["auxiliary"].items()}
        for block in each["blocks"][3:]:
            for key in ("entry_flops", "entry_moved"):
                block.pop(key, None)
        for block in (*each["blocks"], *chain(*each["auxiliary"].values())) if not traffic else ():
            for key in ("forward_moved", "backward_moved", "saved_bytes"):
                assert block.pop(key) > 0
            block.pop("entry_moved", None)
    found = costs_of(model, most_splits=2, traffic=traffic)
    assert stored[model] == json.loads(json.dumps(found))


@pytest.mark.parametrize("objective", ["paper", "measured"])
@pytest.mark.parametrize("training", ServerTraining)
@pytest.mark.parametrize("auxiliary", ["none", "default", "classifier", "deep", "light"])
def test_the_plan_is_the_same(
    auxiliary: str, training: ServerTraining, objective: Objective
) -> None:
    data, example = next(datasets_for("vgg5"))
    settings = PlanSettings(
        training, 20, data.classes, seed=1, auxiliary=auxiliary, objective=objective
    )
    stored = find_costs("vgg5", data.facts, auxiliary)
    assert stored is not None
    measured = MeasuredCosts(build_model("vgg5", data.facts, {}), example, settings)
    assert make_plan(stored, SPEEDS, settings) == make_plan(measured, SPEEDS, settings)


def test_a_plan_says_what_moves_in_memory_only_where_somebody_pays_for_it() -> None:
    data, example = next(datasets_for("vgg5"))
    plain = PlanSettings(ServerTraining.SHARED, 20, data.classes, seed=1, auxiliary="default")
    stored = find_costs("vgg5", data.facts, "default")
    assert stored is not None
    assert "moved" not in make_plan(stored, SPEEDS, plain).to_json()
    charged = replace(plain, traffic=True)
    plan = make_plan(stored, SPEEDS, charged)
    assert plan.auxiliary_profile is not None
    assert all(b.backward_moved > 0 for b in (*plan.blocks, plan.auxiliary_profile))
    assert Plan.from_json(plan.to_json()) == plan
    network = build_model("vgg5", data.facts, {})
    assert plan == make_plan(MeasuredCosts(network, example, charged), SPEEDS, charged)


def test_what_is_not_stored_has_to_be_measured() -> None:
    data, _ = next(datasets_for("vgg5"))
    assert find_costs("vgg5", data.facts, 3) is None
    assert find_costs("vgg5", {**data.facts, "image_size": 9}, "default") is None
    assert find_costs("package.module:model", data.facts, "default") is None
