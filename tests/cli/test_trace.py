"""``fedoptima trace``: a table, JSON, and files for other programs; clear words when it cannot."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from pathlib import Path

import pytest

from fedoptima.analysis.accounts import summarise
from fedoptima.config.load import load_recipe
from fedoptima.experiments.simulation import simulate
from fedoptima.reporting.trace_export import COLUMNS
from tests.cli.conftest import TINY, Call
from tests.reporting.perfetto_format import problems


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("trace")
    recipe = parent / "tiny.toml"
    recipe.write_text(TINY)
    simulate(load_recipe(recipe), dry=True, out=parent / "run")
    return parent / "run"


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be spoilt."""
    copy = tmp_path / "broken"
    shutil.copytree(folder, copy)
    return copy


def test_the_table_says_where_the_time_of_each_node_went(call: Call, folder: Path) -> None:
    answer = call("trace", folder)
    assert answer.code == 0
    usage = summarise(folder / "trace.jsonl.gz").usage
    for node, use in usage.items():
        share = f"{use.busy:.1f} {100 * use.utilisation:.0f} {use.idle_1:.1f}"
        assert f"{node} {share}" in answer.words
    assert answer.words.startswith("tiny: fedoptima, seed")
    assert "Received ActivationBatch" in answer.words
    assert "the longest waits" in answer.words
    assert "waiting for the other side, " in answer.words
    assert all(len(line) <= 80 for line in answer.out.splitlines())


def test_the_overview_as_json(call: Call, folder: Path) -> None:
    answer = call("trace", folder, "--json")
    said = json.loads(answer.out)
    usage = summarise(folder / "trace.jsonl.gz").usage
    assert list(said["nodes"]) == ["server", "fast-1", "fast-2", "slow"]
    for node, use in usage.items():
        line = said["nodes"][node]
        assert (line["busy"], line["idle_1"], line["idle_2"]) == (use.busy, use.idle_1, use.idle_2)
    assert said["records"] == sum(said["events"].values())
    assert said["perfetto_events"] is None


def test_the_trace_itself_may_be_given(call: Call, folder: Path) -> None:
    assert call("trace", folder / "trace.jsonl.gz").out == call("trace", folder).out


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_file_for_perfetto(call: Call, folder: Path, tmp_path: Path, name: str) -> None:
    answer = call("trace", folder, "--perfetto", name)
    assert answer.code == 0
    content = (tmp_path / name).read_bytes()
    document = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
    assert problems(document) == []
    assert f"{name}: {len(document['traceEvents']):,} events" in answer.words
    caps = [e for e in document["traceEvents"] if e["name"] == "activation cap (omega)"]
    assert [event["args"]["batches"] for event in caps] == [32]
    assert sorted(path.name for path in tmp_path.glob("out*")) == [name]


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
def test_a_table_of_spans(call: Call, folder: Path, tmp_path: Path, name: str) -> None:
    answer = call("trace", folder, "--csv", name)
    assert answer.code == 0
    content = (tmp_path / name).read_bytes()
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
    lines = list(csv.DictReader(text.splitlines()))
    assert tuple(lines[0]) == COLUMNS
    assert f"{name}: {len(lines):,} spans" in answer.words
    usage = summarise(folder / "trace.jsonl.gz").usage
    for node, use in usage.items():
        idle = [row for row in lines if row["node"] == node and row["kind"] == "idle_1"]
        seconds = sum(float(row["end"]) - float(row["start"]) for row in idle)
        assert seconds == pytest.approx(use.idle_1, abs=1e-6)


def test_both_files_and_json_in_one_go(call: Call, folder: Path, tmp_path: Path) -> None:
    answer = call("trace", folder, "--perfetto", "a.json", "--csv", "a.csv", "--json")
    said = json.loads(answer.out)
    document = json.loads((tmp_path / "a.json").read_text())
    assert said["perfetto_events"] == len(document["traceEvents"])
    assert said["csv_lines"] == len((tmp_path / "a.csv").read_text().splitlines()) - 1


def test_a_run_that_goes_on_can_be_looked_at(call: Call, broken: Path) -> None:
    trace = broken / "trace.jsonl.gz"
    content = trace.read_bytes()
    trace.write_bytes(content[: len(content) // 2])
    answer = call("trace", broken, "--perfetto", "half.json")
    assert answer.code == 0
    assert problems(json.loads((broken.parent / "half.json").read_text())) == []


# ---- what cannot work ------------------------------------------------------------------------


def complaint(call: Call, *arguments: str | Path) -> str:
    answer = call("trace", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    return answer.complaint


def test_no_such_run(call: Call, tmp_path: Path) -> None:
    assert "nowhere: no such folder or file; give the folder" in complaint(call, "nowhere")
    assert "no run found here" in complaint(call, tmp_path)


def test_a_comparison_has_several(call: Call, folder: Path, tmp_path: Path) -> None:
    for name in ("fl-seed1", "fedoptima-seed1"):
        shutil.copytree(folder, tmp_path / "both" / name)
    said = complaint(call, "both")
    assert "2 runs are here; give one of them, e.g. both/fedoptima-seed1" in said


def test_something_else_than_a_trace(call: Call, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    assert "a.txt: not a trace" in complaint(call, "a.txt")
    with gzip.open(tmp_path / "pi.jsonl.gz", "wt") as file:
        file.write('{"schema": 1}\n')
    assert "a device's own trace; give the folder" in complaint(call, "pi.jsonl.gz")


def test_a_damaged_trace(call: Call, broken: Path, tmp_path: Path) -> None:
    trace = broken / "trace.jsonl.gz"
    lines = gzip.decompress(trace.read_bytes()).decode().splitlines()
    lines[50] = lines[50][:-5]
    trace.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    said = complaint(call, broken, "--csv", "out.csv")
    assert "line 51 of a damaged trace" in said
    assert "run the recipe again" in said
    assert not list(tmp_path.glob("out*"))  # not half a file either


def test_places_that_cannot_be_written_to(call: Call, folder: Path, tmp_path: Path) -> None:
    assert "there is no folder gone" in complaint(call, folder, "--csv", "gone/a.csv")
    assert "is a folder; give the name of a file" in complaint(call, folder, "--perfetto", ".")
    assert "two files cannot have one name" in complaint(
        call, folder, "--perfetto", "a", "--csv", "./a"
    )
    trace = folder / "trace.jsonl.gz"
    before = trace.read_bytes()
    assert "is the trace itself" in complaint(call, folder, "--csv", trace)
    assert trace.read_bytes() == before


def test_a_name_that_is_too_long(call: Call, folder: Path) -> None:
    said = complaint(call, folder, "--csv", "a" * 300)
    assert "cannot be written" in said
    assert "choose another" in said


def test_quiet_says_only_the_result(call: Call, folder: Path) -> None:
    answer = call("trace", folder, "--quiet")
    assert answer.err == ""
    assert answer.words.startswith("tiny")
