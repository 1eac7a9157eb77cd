"""Settings x methods x seeds: what each run is, one tidy table, and finished runs that are kept."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from torch import nn

from fedoptima.comparison.execution import RunState
from fedoptima.comparison.folder import read_about
from fedoptima.comparison.result import Comparison
from fedoptima.comparison.runner import resume_comparison
from fedoptima.comparison.spec import describe, recipe_of
from fedoptima.comparison.sweep import sweep
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.given import Given
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import simulate
from tests.comparison.recipes import digests, tiny

OWN = """
from torch import nn

def network(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
VARY = {"method.activation_cap": [4, 8], "fleet.scale": [1, 0.5]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("swept")
    return sweep(
        tiny(folder),
        VARY,
        methods=["fedoptima", "pipar"],
        seeds=2,
        options={"pipar.micro_batches": 10},
        dry=True,
        jobs=1,
        out=folder / "out",
    )


def test_every_combination_that_reaches_a_method_is_a_row(swept: Comparison) -> None:
    assert not swept.failed
    settings = [(row.method, *row.settings.values()) for row in swept.rows]
    assert settings == [
        *(("fedoptima", cap, scale) for cap in (4, 8) for scale in (1, 0.5)),
        ("pipar", 1),
        ("pipar", 0.5),
    ]
    assert all(row.seeds == (1, 2) for row in swept.rows)
    times = [row.mean.seconds for row in swept.rows if row.mean]
    assert times[1] > 1.5 * times[0]  # half as fast


def test_a_run_is_what_its_recipe_gives_by_itself(swept: Comparison, tmp_path: Path) -> None:
    assert swept.directory is not None
    changes = ["method.activation_cap=8", "fleet.scale=0.5", "seed=2", "threads=1"]
    alone = simulate(tiny(tmp_path, *changes), dry=True)
    folder = swept.directory / "fedoptima-activation_cap=8-fleet.scale=0.5-seed2"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["trace_digest"] == alone.trace_digest
    options = json.loads((swept.directory / "pipar-fleet.scale=1-seed1/config.json").read_text())
    assert options["method"]["micro_batches"] == 10


def test_the_tables_are_tidy(swept: Comparison) -> None:
    assert swept.directory is not None
    with (swept.directory / "sweep.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(swept.runs) == 12
    first, last = lines[0], lines[-1]
    keys = ("method", "method.activation_cap", "fleet.scale", "seed")
    assert [first[key] for key in keys] == ["fedoptima", "4", "1", "1"]
    assert [last[key] for key in keys] == ["pipar", "", "0.5", "2"]
    assert swept.runs[0].figures is not None
    assert float(first["seconds"]) == swept.runs[0].figures.seconds
    markdown = (swept.directory / "sweep.md").read_text()
    assert "# Sweep: tiny" in markdown
    assert "| method | method.activation_cap | fleet.scale |" in markdown
    assert "| pipar | - | 0.5 |" in markdown
    assert "options of one method alone: `pipar.micro_batches = 10`" in markdown
    widths = {line.count("|") for line in markdown.splitlines() if line.startswith("|")}
    assert len(widths) == 1
    with (swept.directory / "curves.csv").open() as file:
        assert next(csv.reader(file))[:4] == list(keys)


def test_finished_runs_are_kept_when_a_sweep_is_extended(swept: Comparison, tmp_path: Path) -> None:
    assert swept.directory is not None
    kept = {
        path: path.stat().st_mtime_ns for path in swept.directory.glob("fedoptima*/summary.json")
    }
    assert len(kept) == 8
    more = {"method.activation_cap": [4, 16], "fleet.scale": [1, 0.5]}
    extended = sweep(tiny(tmp_path), more, seeds=2, dry=True, jobs=1, out=swept.directory)
    assert [row.settings["method.activation_cap"] for row in extended.rows] == [4, 4, 16, 16]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    same = [label for label in digests(extended) if "activation_cap=4" in label]
    assert [digests(extended)[label] for label in same] == [digests(swept)[label] for label in same]
    other = tiny(tmp_path, "training.batch_size=20")
    with pytest.raises(ConfigError, match=r"another recipe \(training.batch_size differs\)"):
        sweep(other, more, dry=True, out=swept.directory)
    with pytest.raises(ConfigError, match=r"another recipe \(dry=True differs\)"):
        sweep(tiny(tmp_path), more, out=swept.directory)


def test_a_sweep_is_resumed_like_a_comparison(tmp_path: Path) -> None:
    vary = {"fleet.scale": [1, 0.5]}
    whole = sweep(tiny(tmp_path), vary, dry=True, jobs=1, out=tmp_path / "out")
    assert read_about(tmp_path / "out").vary == vary
    lost = tmp_path / "out/fedoptima-fleet.scale=0.5-seed1"
    (lost / "summary.json").unlink()  # as if it had been killed
    resumed = resume_comparison(tmp_path / "out", jobs=1)
    assert resumed.rows == whole.rows
    assert digests(resumed) == digests(whole)


def test_a_stopped_sweep_of_ones_own_model_goes_on_when_it_is_ordered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = tiny(tmp_path, "model.name=own:network", "method.name=fl", "stop.epochs=5000")
    reached: list[float] = []
    for _ in range(2):
        seen: list[RunState] = []
        with pytest.raises(Interrupted):
            sweep(
                recipe,
                {"fleet.scale": [1]},
                jobs=1,
                out=tmp_path / "out",
                observer=lambda states, seen=seen: seen.extend(states),  # type: ignore[misc]
                interrupted=lambda seen=seen: any(state.epochs for state in seen),  # type: ignore[misc]
            )
        reached.append(next(state.epochs for state in seen if state.epochs))
    assert reached[1] > reached[0]  # from the checkpoint on


def test_methods_share_the_split_where_all_else_is_equal(tmp_path: Path) -> None:
    about = describe(
        tiny(tmp_path, "split.objective=measured"),
        Given(),
        methods=["splitfed", "fedoptima"],
        seeds=None,
        options={},
        dry=True,
        target=None,
        command=None,
        vary={"fleet.scale": [1, 100], "method.activation_cap": [4, 8]},
    )
    splits: dict[object, set[int | None]] = {}
    for case in about.cases:
        scale = dict(case.settings)["fleet.scale"]
        splits.setdefault(scale, set()).add(recipe_of(about, case, 1).split.at)
    assert all(len(split) == 1 and None not in split for split in splits.values())
    assert splits[1] != splits[100]  # fast devices get more blocks


def test_one_table_has_pipar_with_the_shared_split_and_with_its_own(tmp_path: Path) -> None:
    found = sweep(
        tiny(tmp_path, "fleet.scale=10"),
        {"pipar.own_split": [False, True]},
        methods=["pipar", "splitfed", "fl"],
        dry=True,
        jobs=1,
        out=tmp_path / "out",
    )
    rows = [(row.method, *row.settings.values()) for row in found.rows]
    assert rows == [("pipar", False), ("pipar", True), ("splitfed",), ("fl",)]
    folders = ("pipar-own_split=false", "pipar-own_split=true", "splitfed")
    shared, own, others = (
        json.loads((tmp_path / f"out/{folder}-seed1/summary.json").read_text())["split"]
        for folder in folders
    )
    assert shared == others != own


def test_a_mistake_in_what_is_varied_is_said_before_anything_runs(tmp_path: Path) -> None:
    for vary, message in (
        ({"training.batch_sise": [5]}, "did you mean 'batch_size'?"),
        ({"training.batch_size": [2.5]}, "valid integer"),
        ({"fleet.devices.7.gflops": [1.0]}, "'7' is not one of the items here"),
        (
            {"model": [nn.Linear(1, 1)]},
            "Linear is not a value that a recipe can hold .* simulate",
        ),
        ({"fleet.scale": np.array([1])}, "is not a list of values"),
        ({}, "nothing is varied"),
    ):
        with pytest.raises(ConfigError, match=message):
            sweep(tiny(tmp_path), cast(Any, vary), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_target_is_taken_only_where_it_is_given(tmp_path: Path) -> None:
    vary = {"fleet.scale": [1, 0.5]}
    found = sweep(tiny(tmp_path), vary, target=0.05, jobs=1, out=tmp_path / "out")
    assert all(row.time_to_target for row in found.rows)
    assert "time_to_target" in (tmp_path / "out/sweep.csv").read_text().splitlines()[0]
    assert found.reference is None
