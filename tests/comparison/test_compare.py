"""Methods side by side: the same start for all, any number of processes, no run harms another."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedoptima.comparison.execution import RunState
from fedoptima.comparison.folder import read_about
from fedoptima.comparison.result import Comparison
from fedoptima.comparison.runner import compare, resume_comparison
from fedoptima.comparison.spec import About, recipe_of
from fedoptima.core.errors import ConfigError
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.result import weights_digest
from fedoptima.experiments.setup import assemble, prepare
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import simulate
from fedoptima.methods.registry import COMPARED
from tests.comparison.recipes import CRASHES_ONCE, digests, tiny

METHODS_RUN = ("fedoptima", "fl", "splitfed")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Three methods that were really trained, one after the other."""
    folder = tmp_path_factory.mktemp("real")
    return compare(tiny(folder), methods=METHODS_RUN, jobs=1, out=folder / "out")


@pytest.fixture
def about(real: Comparison) -> About:
    assert real.directory is not None
    return read_about(real.directory)


def test_a_row_a_method_with_the_figures_of_its_run(real: Comparison) -> None:
    assert tuple(row.method for row in real.rows) == METHODS_RUN
    assert not real.failed
    assert real.directory is not None
    for row in real.rows:
        summary = json.loads((real.directory / f"{row.method}-seed1/summary.json").read_text())
        assert row.mean is not None
        assert row.mean.accuracy == summary["accuracy"]
        assert row.mean.seconds == summary["seconds"]
        assert row.mean.bytes_up == pytest.approx(summary["bytes_up"] / summary["trained_epochs"])
        idle = summary["usage"]["server"]["idle_1"] + summary["usage"]["server"]["idle_2"]
        assert row.mean.server_idle == pytest.approx(idle / summary["trained_epochs"])
        assert row.mean.device_throughput == summary["device_samples"] / summary["seconds"]
        assert row.mean.useful_throughput == summary["work"]["useful"] / summary["seconds"]
        shares = [summary["usage"]["server"][f"idle_{kind}_share"] for kind in (1, 2)]
        assert row.mean.server_idle_share == sum(shares)
        assert row.mean.device_idle_1_share == summary["device_usage"]["idle_1_share"]
        assert row.mean.server_memory == summary["server_memory_peak"]
        assert row.deviation is None
    fedoptima, fl, splitfed = (row.mean for row in real.rows)
    assert fedoptima is not None
    assert fl is not None
    assert splitfed is not None
    assert fedoptima.device_idle_2 == 0
    assert fl.device_idle_2 > 0
    assert fl.server_throughput == 0
    assert fl.useful_throughput == fl.device_throughput
    assert fedoptima.useful_throughput == fedoptima.server_throughput
    assert fedoptima.server_memory < splitfed.server_memory


def test_the_folder_holds_the_table_the_figures_and_the_curves(real: Comparison) -> None:
    assert real.directory is not None
    assert json.loads((real.directory / "comparison.json").read_text()) == json.loads(
        real.to_json()
    )
    markdown = (real.directory / "comparison.md").read_text()
    assert markdown == real.to_markdown()
    for word in ("| fl |", "final accuracy, %", "seeds: 1", "torch", "cores", "date: 20"):
        assert word in markdown
    with (real.directory / "curves.csv").open() as file:
        points = list(csv.DictReader(file))
    assert {point["method"] for point in points} == set(METHODS_RUN)
    last = [point for point in points if point["method"] == "fl"][-1]
    row = real.rows[METHODS_RUN.index("fl")]
    assert row.mean is not None
    assert float(last["accuracy"]) == row.mean.accuracy
    assert float(last["epochs"]) == row.mean.epochs


def test_results_do_not_depend_on_the_number_of_processes(real: Comparison, tmp_path: Path) -> None:
    side_by_side = compare(tiny(tmp_path), methods=METHODS_RUN, jobs=2)
    assert digests(side_by_side) == digests(real)
    assert side_by_side.about.recipe.threads == 1  # whatever torch would take
    assert side_by_side.directory is None


def test_all_methods_begin_with_the_same_weights_and_data_and_split(about: About) -> None:
    weights, shares, splits = set(), [], set()
    for method in COMPARED:
        experiment = prepare(recipe_of(about, method, 1))
        assembly = assemble(experiment, [lambda record: None])
        engine = assembly.server_engine
        assert isinstance(engine, ServerEngine)
        while engine.plan is None:
            assembly.simulation.run(pause=lambda: True)  # one event
        weights.add(weights_digest(engine.export()))
        shares.append(experiment.shares)
        if engine.plan.server_blocks:
            splits.add(engine.plan.split)
    assert len(weights) == 1
    assert len(splits) == 1
    for share in shares:
        assert all((share[device] == rows).all() for device, rows in shares[0].items())
    other_seed = prepare(recipe_of(about, "fl", 2)).workload.model
    assert weights_digest(other_seed.state_dict()) not in weights


def test_an_option_goes_to_the_methods_that_have_it_and_the_recipes_own_only_to_its_method(
    about: About, tmp_path: Path
) -> None:
    recipe = tiny(tmp_path, 'method={name="fl", on_leave="wait"}')
    changed = About(**{**vars(about), "recipe": recipe, "options": {"barrier_timeout": 9.0}})
    assert recipe_of(changed, "fl", 1).method.options == {
        "on_leave": "wait",
        "barrier_timeout": 9.0,
    }
    assert recipe_of(changed, "splitfed", 1).method.options == {"barrier_timeout": 9.0}
    assert recipe_of(changed, "fedoptima", 1).method.options == {}


def test_a_run_that_fails_is_reported_and_the_others_share_a_split_and_go_on(
    tmp_path: Path,
) -> None:
    recipe = tiny(tmp_path, "split.objective=measured")
    comparison = compare(
        recipe,
        methods=["fedoptima", "splitfed", "oafl"],
        options={"activation_cap": 0},
        dry=True,
        jobs=1,
        out=tmp_path / "out",
    )
    [failed] = comparison.failed
    assert failed.method == "fedoptima"
    assert "method.activation_cap = 0: must be at least 1" in str(failed.error)
    first, *others = comparison.rows
    assert first.mean is None
    assert all(row.mean is not None for row in others)
    assert "fedoptima (seed 1): method.activation_cap = 0" in comparison.to_markdown()
    assert not (tmp_path / "out/fedoptima-seed1").exists()
    splits = {
        json.loads((tmp_path / f"out/{method}-seed1/summary.json").read_text())["split"]
        for method in ("splitfed", "oafl")
    }
    assert splits == {comparison.about.recipe.split.at}


def test_a_process_that_dies_takes_only_its_run_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mortal.py").write_text(CRASHES_ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = tiny(tmp_path, "model.name=mortal:network")
    comparison = compare(recipe, methods="fl,fedasync", dry=True, jobs=1)
    dead, alive = comparison.rows
    assert "its process was ended by SIGKILL" in dead.errors[1]
    assert alive.mean is not None


def test_a_half_finished_comparison_is_gone_on_with(
    real: Comparison, about: About, tmp_path: Path
) -> None:
    assert real.directory is not None
    shutil.copy(real.directory / "comparison.json", tmp_path)
    finished = tmp_path / "fedoptima-seed1"
    shutil.copytree(real.directory / finished.name, finished)
    kept = (finished / "summary.json").stat().st_mtime_ns
    asked = iter(range(40))
    with pytest.raises(Interrupted):
        simulate(
            recipe_of(about, "fl", 1),
            out=tmp_path / "fl-seed1",
            interrupted=lambda: next(asked, None) is None,
        )
    assert any((tmp_path / "fl-seed1/checkpoints").iterdir())

    resumed = resume_comparison(tmp_path, jobs=1)
    assert digests(resumed) == digests(real)
    assert (finished / "summary.json").stat().st_mtime_ns == kept
    assert resumed.rows == real.rows


def test_an_interrupted_comparison_stops_its_runs_and_begins_no_other(tmp_path: Path) -> None:
    seen: list[RunState] = []

    def watch(states: Sequence[RunState]) -> None:
        seen[:] = states

    recipe = tiny(tmp_path, "stop.epochs=500")
    with pytest.raises(Interrupted):
        compare(
            recipe,
            methods=["fl", "fedasync"],
            jobs=1,
            out=tmp_path / "out",
            observer=watch,
            interrupted=lambda: any(state.phase == "training" for state in seen),
        )
    assert [state.phase for state in seen] == ["stopped", "waiting"]
    assert any((tmp_path / "out/fl-seed1/checkpoints").iterdir())
    assert not (tmp_path / "out/fedasync-seed1").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": "fedoptim"}, "did you mean 'fedoptima'?"),
        ({"options": {"activation_cup": 3}}, "did you mean 'activation_cap'?"),
        ({"methods": ["fl"], "options": {"alpha": 0.5}}, "none of fl has this option"),
        ({"options": {"name": "fl"}}, "takes its methods from methods="),
        ({"seeds": 0}, "at least 1"),
        ({"seeds": []}, "give at least one"),
        ({"jobs": 0}, "jobs=0"),
        ({"target": 80}, "0.8 is 80 %"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(tiny(tmp_path), **arguments)  # type: ignore[arg-type]


def test_a_folder_in_use_is_not_touched(real: Comparison, tmp_path: Path) -> None:
    assert real.directory is not None
    with pytest.raises(ConfigError, match="exists already"):
        compare(tiny(tmp_path), out=real.directory)
    with pytest.raises(ConfigError, match="no comparison found here"):
        resume_comparison(tmp_path)
