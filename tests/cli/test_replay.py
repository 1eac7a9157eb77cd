"""``fedoptima replay``: one line and code 0, or the first difference and code 1."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedoptima.config.load import load_recipe
from fedoptima.experiments.simulation import simulate
from tests.cli.conftest import TINY, Call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a recipe: everything it needs has a name."""
    parent = tmp_path_factory.mktemp("replay")
    recipe = parent / "tiny.toml"
    recipe.write_text(TINY.replace("stop.epochs = 1", "stop.epochs = 0.2"))
    simulate(load_recipe(recipe), threads=1, out=parent / "run")
    return parent / "run"


@pytest.fixture
def digest(folder: Path) -> Iterator[str]:
    """The recorded one; the summary is put back after the test."""
    summary = folder / "summary.json"
    text = summary.read_text()
    yield json.loads(text)["weights_digest"]
    summary.write_text(text)


def test_an_honest_run_is_identical(call: Call, folder: Path) -> None:
    answer = call("replay", folder)
    assert answer.code == 0
    with gzip.open(folder / "trace.jsonl.gz", "rt") as file:
        records = len(file.readlines()) - 1
    assert answer.words == f"identical: {records} records of 4 nodes"


def test_its_weights_are_those_of_its_jobs(call: Call, folder: Path, digest: str) -> None:
    answer = call("replay", folder, "--weights")
    assert answer.code == 0
    assert answer.words.startswith("identical: ")
    assert answer.words.endswith(f"4 nodes, weights {digest[:12]}")


def test_other_weights_end_with_code_1(call: Call, folder: Path, digest: str) -> None:
    summary = folder / "summary.json"
    summary.write_text(summary.read_text().replace(digest, "f" * 64))
    answer = call("replay", folder, "--weights")
    assert answer.code == 1
    assert f"different: weights {'f' * 12} recorded, {digest[:12]} from" in answer.words
    assert call("replay", folder).code == 0


def test_the_outcome_as_json(call: Call, folder: Path, digest: str) -> None:
    answer = call("replay", folder, "--json", "--weights")
    assert answer.code == 0
    said = json.loads(answer.out)
    assert said["identical"] is True
    assert said["difference"] is None
    assert said["weights"] == {"recorded": digest, "executed": digest, "problem": ""}
    assert next(iter(said["nodes"])) == "server"
    assert json.loads(call("replay", folder, "--json").out)["weights"] is None


def test_the_first_difference_is_shown(call: Call, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with gzip.open(folder / "trace.jsonl.gz", "rt") as file:
        lines = file.read().splitlines()
    at = next(i for i, line in enumerate(lines) if '"TurnOn"' in line and '"server"' in line)
    spoilt = lines[at].replace('["TurnOn"]', '["HandIn"]', 1)
    with gzip.open(tmp_path / "trace.jsonl.gz", "wt") as file:
        file.write("\n".join([*lines[:at], spoilt, *lines[at + 1 :], ""]))
    answer = call("replay", tmp_path)
    assert answer.code == 1
    assert answer.words.startswith(f"different: record {at} (server, ")
    assert "expected HandIn(), got TurnOn()" in answer.words
    said = json.loads(call("replay", tmp_path, "--json").out)
    assert said["identical"] is False
    assert said["difference"]["record"] == at


def test_a_folder_without_a_run_is_the_users_error(call: Call, tmp_path: Path) -> None:
    answer = call("replay", tmp_path)
    assert answer.code == 2
    assert "no run found here" in answer.complaint
