"""A run goes on with the defaults that it began with, whatever ours are today."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_setup import check_same_recipe
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import resume
from fedoptima.methods.registry import METHODS, defaults_then
from fedoptima.trace.description import RunDescription
from fedoptima.verification.replay import replay
from tests.experiments.runs import CHURN, FLEET, data, network, run
from tests.experiments.test_interrupted import after

OBJECTS: dict[str, Any] = {"model": network(), "train": data(), "test": data(48, seed=1)}
UNSTABLE = {**FLEET, "churn": {**CHURN, "every": 0.06, "leave_probability": 0.4}}
BARRIERS = ["fl", "splitfed", "cse_fsl"]


def drops(method: str) -> dict[str, object]:
    return {"method": {"name": method, "on_leave": "drop"}, "fleet": UNSTABLE}


def as_an_earlier_version_wrote_it(folder: Path) -> None:
    """When "drop" was the default: only the options that the run began with tell of it."""

    def without(plain: dict[str, Any]) -> dict[str, Any]:
        assert plain["method"]["on_leave"] == "drop"
        del plain["recipe"]["method"]["on_leave"]
        plain.pop("sha256", None)
        return plain

    config, trace = folder / "config.json", folder / "trace.jsonl.gz"
    config.write_text(json.dumps(without(json.loads(config.read_text()))))
    if (folder / "checkpoints").exists():
        return  # they say how long the trace is
    header, *lines = gzip.decompress(trace.read_bytes()).decode().splitlines(keepends=True)
    text = "".join((json.dumps(without(json.loads(header))) + "\n", *lines))
    trace.write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("method", BARRIERS)
def test_a_run_from_before_a_default_changed_is_replayed(method: str, tmp_path: Path) -> None:
    run(out=tmp_path / "run", **drops(method))
    as_an_earlier_version_wrote_it(tmp_path / "run")
    found = replay(tmp_path / "run", weights=True, **OBJECTS)
    assert found.identical, found


@pytest.mark.parametrize("checkpoint", [True, False])
def test_it_goes_on_as_it_began(tmp_path: Path, checkpoint: bool) -> None:
    unbroken = run(**drops("fl"))
    with pytest.raises(Interrupted):
        run(out=tmp_path / "run", interrupted=after(60), **drops("fl"))
    if not checkpoint:
        shutil.rmtree(tmp_path / "run" / "checkpoints")
    as_an_earlier_version_wrote_it(tmp_path / "run")
    result = resume(tmp_path / "run", **OBJECTS)
    assert result.trace_digest == unbroken.trace_digest
    assert result.weights_digest == unbroken.weights_digest
    today = run(method="fl", fleet=UNSTABLE)
    assert result.trace_digest != today.trace_digest, "or this test shows nothing"


def test_the_recipe_that_it_was_started_with_is_still_the_same_recipe(tmp_path: Path) -> None:
    run(out=tmp_path / "run", dry=True, **drops("fl"))
    as_an_earlier_version_wrote_it(tmp_path / "run")
    opened, kept, _ = RunDirectory.open(tmp_path / "run")
    table = dict(opened.description.recipe)
    assert kept.method.options == {"on_leave": "drop"}
    check_same_recipe(validate(Recipe, table, "test"), kept, opened)
    table["method"] = {"name": "fl", "on_leave": "keep"}
    with pytest.raises(ConfigError, match="was started with another recipe"):
        check_same_recipe(validate(Recipe, table, "test"), kept, opened)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_today_has_the_defaults_of_today(method: str, tmp_path: Path) -> None:
    run(out=tmp_path / "run", dry=True, method=method)
    known = RunDirectory(tmp_path / "run").description
    assert defaults_then(method, {}, known.options) == {}


def test_fl_of_0_1_0_dropped_who_left(tmp_path: Path) -> None:
    def options(method: dict[str, object]) -> object:
        plain = {"recipe": {"name": "old", "seed": 1, "method": method}}
        return RunDescription.from_plain(plain, tmp_path / "config.json").options

    assert options({"name": "fl"}) == {"on_leave": "drop"}
    assert options({"name": "splitfed", "on_leave": "wait"}) == {"on_leave": "wait"}
    assert options({"name": "pipar"}) == {}
