"""A dry run with a data set's facts is the dry run with the data set itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.data.registry import DATASETS
from fedoptima.experiments.dry_setup import prepare_dry
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import prepare
from fedoptima.experiments.simulated_run import run_experiment
from tests.experiments.runs import FLEET

DATA = {
    "as the paper divides": {},
    "IID": {"partition": {"kind": "iid"}},
    "with validation data held out": {"validation": 0.1},
}


def recipe_of(**parts: dict[str, Any]) -> Recipe:
    table = {
        "model": {"name": "vgg5"},
        "data": {"name": "digits"},
        "fleet": FLEET,
        "training": {"batch_size": 32},
        "stop": {"epochs": 1.0},
    }
    return validate(Recipe, table | parts, "test")


@pytest.mark.parametrize("data", DATA.values(), ids=list(DATA))
@pytest.mark.parametrize("method", ["fedoptima", "fl"])
def test_the_trace_has_the_same_digest(method: str, data: dict[str, object]) -> None:
    recipe = recipe_of(data={"name": "digits", **data}, method={"name": method})
    facts = Given(dataset=DATASETS["digits"].stand_in({}))
    assumed = run_experiment(prepare(recipe, facts, dry=True), dry=True)
    real = run_experiment(prepare(recipe), dry=True)
    assert assumed.trace_digest == real.trace_digest
    assert assumed.device_samples > 0


@pytest.mark.parametrize("data", DATA.values(), ids=list(DATA))
@pytest.mark.parametrize(
    "method", ["fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl", "cse_fsl"]
)
def test_what_is_stored_gives_the_same_run(method: str, data: dict[str, object]) -> None:
    recipe = recipe_of(data={"name": "digits", **data}, method={"name": method})
    stored = prepare_dry(recipe, Given())
    assert stored is not None
    measured = prepare(recipe, dry=True)
    assert stored.samples == measured.samples
    assert stored.batches == measured.batches
    digests = {run_experiment(each, dry=True).trace_digest for each in (stored, measured)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"name": "vgg5", "channels": 2}},
        {"model": {"name": "package.module:network"}},
        {"model": {"name": "transformer6"}},
        {"data": {"name": "package.module:data"}},
        {"data": {"name": "digits", "validation": 1e-6}},
        {"method": {"name": "fedoptima", "auxiliary": 3}},
        {"fleet": {**FLEET, "devices": [{"name": "many", "count": 2000, "gflops": 1.0}]}},
    ],
    ids=str,
)
def test_what_is_not_stored_is_measured(parts: dict[str, Any]) -> None:
    assert prepare_dry(recipe_of(**parts), Given()) is None


def test_a_division_from_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "parts.json"
    file.write_text(json.dumps({}))
    data = {"name": "digits", "partition": {"kind": "file", "file": str(file)}}
    assert prepare_dry(recipe_of(data=data), Given()) is None


def test_a_model_or_data_given_in_python_is_measured() -> None:
    recipe = recipe_of()
    assert prepare_dry(recipe, Given(model=nn.Linear(2, 2))) is None
    assert prepare_dry(recipe, Given(dataset=DATASETS["digits"].stand_in({}))) is None


def test_what_is_assumed_about_data_that_are_not_there_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = {"name": "cifar10", "directory": str(tmp_path)}
    assert prepare_dry(recipe_of(data=data), Given()) is not None
    assert caplog.text.count("'cifar10' is not on disk") == 1
    caplog.clear()
    assert prepare_dry(recipe_of(data=data, model={"name": "vgg5", "x": 1}), Given()) is None
    assert not caplog.text
