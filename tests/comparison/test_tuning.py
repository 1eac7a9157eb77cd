"""Each method's settings from the same grid: by held-out data, in a recipe, with their cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.comparison.result import Comparison
from fedoptima.comparison.rows import Run, read_run
from fedoptima.comparison.spec import describe, recipe_of
from fedoptima.comparison.tuning import (
    RATE,
    RESET,
    Choice,
    choose,
    search_grid,
    tuned_recipe,
    write_choice,
)
from fedoptima.config.load import load_recipe
from fedoptima.config.toml_text import toml_text
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.given import Given
from fedoptima.experiments.simulation import simulate
from fedoptima.methods.registry import COMPARED
from tests.cli.conftest import TINY
from tests.comparison.recipes import tiny


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two methods that were really trained, with a rate that learns nothing and one that does."""
    folder = tmp_path_factory.mktemp("swept")
    recipe = tiny(folder)
    about = describe(
        recipe, Given(), methods=["fedoptima", "fl"], seeds=None, options={}, dry=False,
        target=None, command=None, vary=search_grid(recipe, [], {RATE: [1e-12, 0.05]}, epochs=1),
    )  # fmt: skip
    results = {case: simulate(recipe_of(about, case, 1)).to_json() for case in about.cases}
    runs = [read_run(case, 1, json.loads(result)) for case, result in results.items()]
    return Comparison(about, tuple(runs), folder)


def test_the_settings_with_the_best_held_out_accuracy_are_chosen(swept: Comparison) -> None:
    choices = choose(swept)
    assert [choice.method for choice in choices] == ["fedoptima", "fl"]
    for choice in choices:
        assert choice.settings == {RATE: 0.05}
        assert choice.accuracy is not None
        assert choice.second is not None
        assert choice.accuracy > choice.second
        assert choice.runs == 2
        assert choice.epochs == pytest.approx(2, abs=0.6)


def test_a_task_without_accuracy_is_chosen_for_by_its_loss(
    swept: Comparison, tmp_path: Path
) -> None:
    """Of the same runs, as if they had no accuracy; and the rate that learned had more loss."""

    def turned(run: Run) -> Run:
        assert run.figures is not None
        loss = 2.0 if run.settings[RATE] == 0.05 else 0.5
        return replace(run, figures=replace(run.figures, accuracy=None, loss=loss))

    by_loss = replace(swept, runs=tuple(map(turned, swept.runs)))
    for choice in write_choice(by_loss, tmp_path, 7.0):
        assert choice.settings == {RATE: 1e-12}
        assert (choice.accuracy, choice.loss, choice.second) == (None, 0.5, 2.0)
        assert choice.held_out() == ("loss 0.5", "loss 2")
    text = (tmp_path / "tuned.toml").read_text()
    assert "in the same grid, by the loss" in text
    assert "fl: loss 0.5, next loss 2; 2 runs" in text


def test_test_data_have_no_say(swept: Comparison) -> None:
    """The runs' accuracies on test data are turned round: the choice stays."""
    runs = [run for run in swept.runs if run.figures]
    tested = [run.figures.test_accuracy for run in runs if run.figures]
    assert None not in tested  # it was held out of training, and test data are there
    turned = [
        replace(run, figures=replace(run.figures, test_accuracy=other))
        for run, other in zip(runs, reversed(tested), strict=True)
        if run.figures
    ]
    assert choose(replace(swept, runs=tuple(turned))) == choose(swept)


def test_settings_with_a_failed_run_are_not_chosen(swept: Comparison) -> None:
    failed = [
        replace(run, figures=None, error="diverged")
        if run.method == "fl" or run.settings[RATE] == 0.05
        else run
        for run in swept.runs
    ]
    [choice] = choose(replace(swept, runs=tuple(failed)))
    assert choice.method == "fedoptima"
    assert choice.settings == {RATE: 1e-12}
    assert choice.failed == 1


def test_the_choice_is_a_recipe_with_the_cost_of_the_search(
    swept: Comparison, tmp_path: Path
) -> None:
    choices = write_choice(swept, tmp_path, 7.0)
    text = (tmp_path / "tuned.toml").read_text()
    assert "# 4 runs, " in text
    assert " and 7 s on the machine" in text
    recipe = load_recipe(tmp_path / "tuned.toml")
    assert recipe.data.validation == "test"  # how it was searched is no part of it
    assert recipe.stop == swept.about.recipe.stop
    assert recipe.fleet == swept.about.recipe.fleet
    assert recipe.training == swept.about.recipe.training
    about = describe(
        recipe, Given(), methods=["fl", "splitfed"], seeds=None, options={}, dry=True,
        target=None, command=None,
    )  # fmt: skip
    assert recipe_of(about, "fl", 1).training.device.learning_rate == 0.05
    assert recipe_of(about, "splitfed", 1).training.device.learning_rate == 0.01
    plain = json.loads((tmp_path / "tuning.json").read_text())
    assert plain["cost"]["runs"] == sum(choice.runs for choice in choices) == 4
    assert plain["cost"]["wall_seconds"] == 7.0
    assert plain["conditions"] == {"data.validation": 0.1, "stop.epochs": 1}


def test_the_choice_for_another_optimiser_is_a_recipe_that_can_be_read(tmp_path: Path) -> None:
    batches = "batch_size = 50"
    assert batches in TINY
    sgd = TINY.replace(batches, f"{batches}, device = {{ momentum = 0.8, nesterov = true }}")
    (tmp_path / "sgd.toml").write_text(sgd)
    recipe = load_recipe(tmp_path / "sgd.toml", ["training.device.name=adam"])
    (tmp_path / "tuned.toml").write_text(toml_text(tuned_recipe(recipe, ())))
    assert load_recipe(tmp_path / "tuned.toml").training.device.name == "adam"


def test_the_usual_grid_has_as_many_cells_for_every_method(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    about = describe(
        recipe, Given(), methods="all", seeds=None, options={}, dry=True, target=None,
        command=None, vary=search_grid(recipe, COMPARED),
    )  # fmt: skip
    cells = {method: [case for case in about.cases if case.method == method] for method in COMPARED}
    assert {len(found) for found in cells.values()} == {12}
    settings = dict(cells["fedasync"][0].settings)
    assert settings == {RATE: 0.005, RESET: False, "fedasync.alpha": 0.4, "data.validation": 0.1}
    chosen = recipe_of(about, cells["fedoptima"][-1], 1)
    assert chosen.training.iterations == 20
    assert chosen.training.server.learning_rate == 0.02
    assert chosen.training.server.reset_on_load


def test_only_what_a_method_can_have_of_its_own_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.augment: is the same for all methods"):
        search_grid(tiny(tmp_path), ["fl"], {"data.augment": [True, False]})


def choice(method: str, settings: Mapping[str, object]) -> Choice:
    return Choice(method, settings, 0.5, None, 1, 0, 1.0, 1.0)


def test_a_choice_comes_before_what_the_recipe_said(tmp_path: Path) -> None:
    recipe = tiny(
        tmp_path,
        'method={name="fedasync", alpha=0.5}',
        "methods.fedasync.training.device.momentum=0.5",
        "methods.fedasync.training.iterations=9",
        "methods.fl.on_leave=wait",
    )
    settings: dict[str, object] = {"method.alpha": 0.4, RESET: True, "fedasync.max_delay": 3}
    settings["fedasync.training.iterations"] = None  # as long as by default
    table = tuned_recipe(recipe, [choice("fedasync", settings)])
    assert table["methods"]["fl"] == {"on_leave": "wait"}
    assert table["methods"]["fedasync"] == {
        "alpha": 0.4,
        "max_delay": 3,
        "training": {
            "device": {"momentum": 0.5, "reset_on_load": True},
            "server": {"reset_on_load": True},
        },
    }
    assert table["method"] == {"name": "fedasync"}
