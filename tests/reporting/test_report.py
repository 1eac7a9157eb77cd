"""`report`: folders of runs and of comparisons in, one file and what it says out."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path

import pytest

from fedoptima.analysis.accounts import summarise
from fedoptima.comparison.runner import compare
from fedoptima.config.load import load_recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.types import SERVER
from fedoptima.experiments.simulation import simulate
from fedoptima.reporting.report import find_traces, report
from tests.experiments.runs import arguments

pytest.importorskip("plotly", reason="plotly is an extra")

RECIPES = Path(__file__).parents[2] / "recipes"

RECIPE = """
name = "tiny"
threads = 1
model.name = "vgg5"
data.name = "tests.prediction.test_advice:pictures"
data.partition.kind = "iid"
training.batch_size = 8
stop.epochs = 1
fleet.server.gflops = 0.05
fleet.devices = [ { name = "slow", gflops = 0.001 }, { name = "fast", gflops = 0.006, count = 2 } ]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs given in Python, which have no advice: ``a`` and ``b`` differ by their seed."""
    parent = tmp_path_factory.mktemp("reporting")
    for name, method, seed in (("a", "fedoptima", 1), ("b", "fedoptima", 2), ("c", "fl", 1)):
        given = arguments(method=method, seed=seed, epochs=2.0)
        simulate(**given, out=parent / name)  # type: ignore[arg-type]
    return parent


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("comparison")
    recipe = parent / "tiny.toml"
    recipe.write_text(RECIPE)
    compare(recipe, methods="fl,fedoptima", dry=True, jobs=1, out=parent / "compared")
    return parent / "compared"


def test_a_run_becomes_one_file(folder: Path, tmp_path: Path) -> None:
    made = report([folder / "a"], out=tmp_path / "r.html", advice=False)
    text = made.path.read_text()
    assert made.nbytes == len(text.encode()) < 6e6
    assert text.startswith("<!doctype html>")
    assert "<h1>run: fedoptima, seed 1</h1>" in text
    assert made.advice is None
    assert "What would help" not in text


def test_its_numbers_are_those_of_the_trace(folder: Path, tmp_path: Path) -> None:
    made = report([folder / "c"], out=tmp_path / "r.html", advice=False)
    (run,) = json.loads(made.to_json())["runs"]
    known = summarise(folder / "c" / "trace.jsonl.gz")
    written = json.loads((folder / "c" / "summary.json").read_text())
    assert run["usage"] == json.loads(known.to_json())["usage"] == written["usage"]
    assert run["sentences"] == made.sentences["fl"]
    assert run["ended"] is not None


def test_labels_are_as_short_as_they_can_be(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"

    def labels(*runs: Path) -> list[str]:
        return [view.label for view in report(runs, out=out, advice=False).views]

    a, b, c = (folder / name for name in "abc")
    assert labels(a, c) == ["fedoptima", "fl"]
    assert labels(a, b) == ["fedoptima, seed 1", "fedoptima, seed 2"]
    twin = tmp_path / "twin"
    shutil.copytree(a, twin)
    assert labels(a, twin) == ["a", "twin"]
    assert labels(a, a / "." / "trace.jsonl.gz") == ["fedoptima"]  # the same run, given twice


def test_a_comparison_is_all_its_runs_in_its_order(comparison: Path, tmp_path: Path) -> None:
    made = report([comparison], out=tmp_path / "r.html", allow_modules=["tests"])
    assert [view.label for view in made.views] == ["fl", "fedoptima"]
    assert "<h1>tiny: 2 runs</h1>" in made.path.read_text()
    assert made.advised == "fedoptima"
    assert made.advice is not None
    assert made.advice.reason == ""
    assert "For fedoptima: " in made.path.read_text()
    assert json.loads(made.to_json())["advice"]["trials"]


def test_a_folder_of_runs_is_all_that_lie_in_it(folder: Path) -> None:
    assert [trace.parent.name for trace in find_traces([folder])] == ["a", "b", "c"]


def test_the_cap_is_the_methods(folder: Path, tmp_path: Path) -> None:
    made = report([folder / "a", folder / "c"], out=tmp_path / "r.html", advice=False)
    assert [view.description.activation_cap for view in made.views] == [32, None]  # max(2 K, 32)


def test_a_simulations_cap_is_not_that_of_the_devices_expected_over_the_network(
    tmp_path: Path,
) -> None:
    recipe = load_recipe(RECIPES / "demo_digits.toml")
    deploy = recipe.deploy.model_copy(update={"devices": 100})
    simulate(recipe.model_copy(update={"deploy": deploy}), dry=True, epochs=1, out=tmp_path / "run")
    made = report([tmp_path / "run"], out=tmp_path / "r.html", advice=False)
    assert made.views[0].description.activation_cap == 32


def described_as(run: Path, **facts: object) -> Path:
    trace = run / "trace.jsonl.gz"
    header, *lines = gzip.decompress(trace.read_bytes()).split(b"\n")
    changed = json.dumps({**json.loads(header), **facts}).encode()
    trace.write_bytes(gzip.compress(b"\n".join([changed, *lines])))
    return run


def test_a_report_needs_no_method_that_can_be_built(folder: Path, tmp_path: Path) -> None:
    method = {"name": "of_others", "cleverness": 9}
    copy = shutil.copytree(folder / "a", tmp_path / "foreign")
    foreign = described_as(copy, method=method, activation_cap=77)
    made = report([foreign], out=tmp_path / "r.html", advice=False)
    assert (made.views[0].method, made.views[0].description.activation_cap) == ("of_others", 77)


def test_a_recipe_of_another_version_is_reported_without_advice(
    folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder / "a", tmp_path / "other")
    other = described_as(copy, recipe={"name": "other", "seed": 1, "new_table": {}})
    made = report([other], out=tmp_path / "r.html")
    assert made.advice is not None
    assert "the recipe cannot be rerun here" in made.advice.reason
    assert made.views[0].records > 0


def test_a_run_that_was_cut_off_is_reported_so_far(folder: Path, tmp_path: Path) -> None:
    """As after a kill: the trace ends in the middle of a line."""
    with gzip.open(folder / "a" / "trace.jsonl.gz", "rt") as file:
        text = file.read()
    (tmp_path / "run").mkdir()
    with gzip.open(tmp_path / "run" / "trace.jsonl.gz", "wt") as file:
        file.write(text[: len(text) // 2])
    made = report([tmp_path / "run"], out=tmp_path / "r.html", advice=False)
    (view,) = made.views
    assert view.halt is None
    assert 0 < view.summary.seconds < summarise(folder / "a" / "trace.jsonl.gz").seconds
    assert "The run has not ended" in made.path.read_text()


def test_a_run_that_has_only_begun_is_reported_too(folder: Path, tmp_path: Path) -> None:
    with gzip.open(folder / "a" / "trace.jsonl.gz", "rt") as file:
        lines = file.read().splitlines(keepends=True)
    (tmp_path / "run").mkdir()
    for kept in (1, 4):  # the header alone, and devices that are joining
        with gzip.open(tmp_path / "run" / "trace.jsonl.gz", "wt") as file:
            file.writelines(lines[:kept])
        made = report([tmp_path / "run"], out=tmp_path / "r.html", advice=False)
        assert made.views[0].records == kept - 1
        assert made.views[0].summary.usage[SERVER].span == 0


def test_progress_is_told(folder: Path, tmp_path: Path) -> None:
    told: list[str] = []
    report(
        [folder / "a"],
        out=tmp_path / "r.html",
        progress=lambda what, records: told.append(what),
    )
    assert told == ["looking for what would help", "drawing"]  # so short a trace is read at once


def test_without_plotly_it_is_said_how_to_get_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install 'fedoptima\[report\]'"):
        report([folder / "a"], out=tmp_path / "r.html")


def test_what_cannot_be_reported_is_said_with_the_way_out(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run found here"):
        report([tmp_path])
    with pytest.raises(ConfigError, match="no run found here"):
        report([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="is a folder; give a file"):
        report([folder / "a"], out=tmp_path)
    with pytest.raises(ConfigError, match="there is no folder"):
        report([folder / "a"], out=tmp_path / "no" / "r.html")
    (tmp_path / "trace.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match="not a trace"):
        report([tmp_path])
    with gzip.open(tmp_path / "trace.jsonl.gz", "wt") as file:
        file.write('{"schema": 1, "node": "fast"}\n')
    with pytest.raises(ConfigError, match="a device's own trace"):
        report([tmp_path / "trace.jsonl.gz"])


def test_a_report_runs_no_code_that_a_file_names(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(comparison / "fedoptima-seed1", tmp_path / "run")
    (tmp_path / "foreign_code.py").write_text("open('it_ran', 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    trace = run / "trace.jsonl.gz"
    with gzip.open(trace, "rt") as file:
        head, *records = file.readlines()
    header = json.loads(head)
    header["recipe"]["model"] = {"name": "foreign_code:build"}
    with gzip.open(trace, "wt") as file:
        file.writelines([json.dumps(header) + "\n", *records])
    mine = ["tests.prediction", "foreign"]  # whole parts: not foreign_code
    made = report(run, out=tmp_path / "r.html", allow_modules=mine)
    assert made.advice is not None
    assert "'foreign_code:build'" in made.advice.reason
    assert "--allow-module foreign_code" in made.advice.reason
    assert not Path("it_ran").exists()
    report(run, out=tmp_path / "r.html", allow_modules=[*mine, "foreign_code"])
    assert Path("it_ran").exists()
