from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.effects import Send
from fedoptima.core.errors import ConfigError
from fedoptima.core.messages import Assignment
from fedoptima.experiments.given import Given
from fedoptima.experiments.planned_form import PlannedForm, is_planned, plan_form
from fedoptima.experiments.setup import build_form, prepare, with_planned_form
from fedoptima.experiments.simulation import simulate
from fedoptima.trace.reader import read_trace
from fedoptima.verification.replay import replay


def recipe(gflops: float, mbps: float, server: float = 150.0, **changes: Any) -> Recipe:
    """VGG-5 on CIFAR-10, of which a dry run needs only what is stored."""
    whole = {
        "name": "planned",
        "model": {"name": "vgg5"},
        "data": {"name": "cifar10", "directory": str(Path(__file__).parent)},
        "fleet": {
            "server": {"gflops": server},
            "devices": [{"name": "device", "count": 2, "gflops": gflops, "mbps": mbps}],
        },
        "method": {"name": "fedoptima_plus"},
        "training": {"batch_size": 100, "iterations": 10},
        "stop": {"epochs": 1.0},
    }
    return validate(Recipe, {**whole, **changes}, "test")


# Nothing but the cuts is left to choose: few forms are tried.
SETTLED = {"codec": "float32", "auxiliary": "default", "train_every": 1, "reuse": False}


def uneven(server: float, options: Mapping[str, object] = SETTLED, **split: object) -> Recipe:
    """Four slow devices and two quick ones, on links that carry all they make."""
    speeds = {"slow": (4, 0.3), "quick": (2, 1.5)}
    devices = [
        {"name": name, "count": count, "gflops": gflops, "mbps": 400.0}
        for name, (count, gflops) in speeds.items()
    ]
    fleet = {"server": {"gflops": server}, "devices": devices}
    method = {"name": "fedoptima_plus", **options}
    return recipe(1.0, 1.0, fleet=fleet, split=split, method=method)


def planned(given: Recipe) -> PlannedForm:
    return plan_form(given, partial(build_form, Given()))


def test_slow_links_get_a_codec_and_slow_devices_train_on_fewer_batches() -> None:
    links, devices = planned(recipe(6.0, 10.0)), planned(recipe(0.1, 1000.0))
    assert links.chosen.form.codec == "int8"
    assert devices.chosen.form.codec == "float32"
    assert devices.chosen.form.train_every == 4
    for found in (links, devices):
        first = found.tried[0]
        assert found.chosen.useful > 1.2 * first.useful
        assert found.chosen.trained_share >= 0.25
        assert found.chosen.useful >= max(one.useful for one in found.tried) / 1.02


def test_a_server_that_is_idle_reuses_activations_and_a_busy_one_does_not() -> None:
    idle = planned(recipe(1.0, 20.0))
    busy = planned(recipe(50.0, 10_000.0, server=2.0, split={"at": 1}))
    assert idle.reuse == {"batches": 64, "uses": 4}
    assert busy.reuse is False
    assert busy.chosen.form.auxiliary == "default"
    assert busy.chosen.form.train_every == 1  # less training would bring nothing


def test_a_slow_server_gets_a_late_cut_that_pays_only_where_devices_train_less() -> None:
    found = planned(recipe(6.0, 400.0, server=5.0))
    assert found.chosen.form.split == 3
    assert found.chosen.form.train_every == 4
    alone = [one for one in found.tried if one.form.split == 3 and one.form.train_every == 1]
    assert max(one.useful for one in alone) < 0.7 * found.chosen.useful


@pytest.mark.no_cover  # dozens of dry runs, through lines that the tests below run through, too
def test_quick_devices_spare_a_busy_server_a_block_where_the_recipe_asks_for_it() -> None:
    found = planned(uneven(9.5, options={}, per_device=True))
    form = found.chosen.form
    assert form.cuts == ((1, 4), (2, 2))
    alone = max(one.useful for one in found.tried if not one.form.cuts)
    assert found.chosen.useful > 1.1 * alone
    assert found.chosen.trained_share == 1.0  # training is not given up for it
    split = found.recipe.split
    assert (split.at, split.per_device, split.objective) == (None, True, "measured")
    assert is_planned(found.recipe)
    run = prepare(found.recipe, dry=True)
    cuts = run.cuts(run.plan())
    assert (cuts["slow-1"], cuts["quick-1"]) == (1, 2)


def test_otherwise_all_have_one_cut() -> None:
    found = planned(uneven(8.0))
    assert found.chosen.server_busy > 0.95
    assert not any(one.form.cuts for one in found.tried)
    assert found.recipe.split.at == 1


def test_a_server_with_time_to_spare_is_not_spared() -> None:
    assert planned(uneven(1000.0, per_device=True)).chosen.form.cuts == ((1, 6),)


def test_the_time_that_the_recipe_gives_is_kept() -> None:
    found = planned(uneven(9.5, per_device=True, batch_seconds=0.5))
    assert found.recipe.split.batch_seconds == 0.5
    assert is_planned(found.recipe)


def test_what_does_not_go_with_cuts_of_single_devices_says_so() -> None:
    given = uneven(9.5, {**SETTLED, "robust": "clip"}, per_device=True)
    with pytest.raises(ConfigError, match="compares the updates of all devices"):
        planned(given)


def test_what_the_recipe_gives_is_kept() -> None:
    own = {"name": "fedoptima_plus", "codec": "bfloat16", "train_every": 1, "reuse": False}
    found = planned(recipe(0.1, 10.0, method=own, split={"at": 2}))
    assert {one.form.codec for one in found.tried} == {"bfloat16"}
    assert {one.form.split for one in found.tried} == {2}
    assert found.recipe.method.options["reuse"] is False
    assert is_planned(found.recipe)


def test_an_auxiliary_network_of_no_blocks_is_kept_and_without_one_nothing_is_reused() -> None:
    own = {"name": "fedoptima_plus", "auxiliary": 0, "codec": "float32", "train_every": 1}
    found = planned(recipe(0.1, 10.0, method=own, split={"at": 2}))
    assert found.recipe.method.options["auxiliary"] == 0
    none = {**own, "auxiliary": "none"}
    assert planned(recipe(0.1, 10.0, method=none, split={"at": 2})).reuse is False


@pytest.mark.parametrize("share", [0, "half", 2.0])
def test_an_impossible_share_is_an_error_of_its_own(share: object) -> None:
    asked = {"name": "fedoptima_plus", "least_training": share}
    with pytest.raises(ConfigError, match=r"method\.least_training"):
        planned(recipe(0.1, 1000.0, method=asked))


def test_devices_train_on_the_least_share_that_is_asked_for() -> None:
    asked = {"name": "fedoptima_plus", "least_training": 0.5}
    found = planned(recipe(0.1, 1000.0, method=asked))
    assert found.chosen.form.train_every == 2


def test_a_run_has_the_choice_in_its_recipe_and_is_not_planned_again() -> None:
    given = recipe(6.0, 10.0)
    dry = simulate(given, dry=True)
    chosen = with_planned_form(given)
    assert is_planned(chosen)
    assert with_planned_form(chosen) is chosen
    assert prepare(given, dry=True).recipe.method == chosen.method
    assert dry.method == "fedoptima_plus"
    assert simulate(chosen, dry=True).trace_digest == dry.trace_digest


def test_the_planner_needs_a_fleet() -> None:
    given = recipe(6.0, 10.0).model_copy(update={"fleet": None})
    with pytest.raises(ConfigError, match="give the recipe a fleet, or choose yourself"):
        with_planned_form(given)


def test_a_form_that_cannot_be_is_left_out() -> None:
    found = planned(recipe(6.0, 10.0))
    impossible = [one for one in found.tried if one.why]
    assert all(one.useful == 0.0 for one in impossible)
    assert replace(found.chosen, why="") == found.chosen


# ---- a plan with several cuts, trained -----------------------------------------------------------

SPEEDS = {"slow": 0.05, "slower": 0.045, "quick": 0.4}  # GFLOP/s
SEVERAL = {"slow": 1, "slower": 1, "quick": 2}


def digits(**parts: object) -> Recipe:
    """Two slow devices and a quick one, and a server that the first cut keeps busy."""
    devices = [{"name": name, "gflops": gflops, "mbps": 50.0} for name, gflops in SPEEDS.items()]
    whole = {
        "name": "digits",
        "threads": 1,
        "model": {"name": "vgg5"},
        "data": {"name": "digits", "partition": {"kind": "iid"}},
        "fleet": {"server": {"gflops": 1.2}, "devices": devices},
        "method": {"name": "fedoptima_plus"},
        "training": {"batch_size": 20, "iterations": 10},
        "split": {"per_device": True},
        "stop": {"epochs": 1.0},
    }
    return validate(Recipe, {**whole, **parts}, "test")


@pytest.mark.no_cover  # so does this
def test_a_simulation_trains_with_several_cuts_and_its_record_proves_the_weights(
    tmp_path: Path,
) -> None:
    result = simulate(digits(stop={"epochs": 3.0}), out=tmp_path / "run")
    first = read_trace(tmp_path / "run" / "trace.jsonl.gz")
    sent = (effect for record in first for effect in record.effects if isinstance(effect, Send))
    plans = {e.to: e.message.program.cut for e in sent if isinstance(e.message, Assignment)}
    assert plans == SEVERAL
    assert result.best_accuracy > 0.6
    assert replay(tmp_path / "run", weights=True).difference is None
