"""``fedoptima report``: a file, the summary on the terminal, and JSON on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedoptima.config.load import load_recipe
from fedoptima.experiments.simulation import simulate
from tests.cli.conftest import TINY, Call

pytest.importorskip("plotly", reason="plotly is an extra")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("report")
    recipe = parent / "tiny.toml"
    recipe.write_text(TINY)
    for method in ("fedoptima", "fl"):
        simulate(load_recipe(recipe), method=method, threads=1, dry=True, out=parent / method)
    return parent


def test_a_report_is_written_and_summed_up(call: Call, folder: Path, tmp_path: Path) -> None:
    answer = call("report", folder / "fedoptima")
    assert answer.code == 0
    assert "dry run" in answer.words
    assert "would help most" in answer.words
    assert "dry simulations of the recipe" in answer.words
    assert answer.words.endswith("MB)")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_advice_can_be_left_out(call: Call, folder: Path, tmp_path: Path) -> None:
    answer = call("report", folder / "fl", "--no-advice", "-o", "other.html")
    assert answer.code == 0
    assert "dry simulations" not in answer.words
    assert "other.html" in answer.words
    assert "What would help" not in (tmp_path / "other.html").read_text()


def test_it_says_that_a_file_of_that_name_was_replaced(call: Call, folder: Path) -> None:
    first = call("report", folder / "fl", "--no-advice")
    assert "replaces" not in first.words
    second = call("report", folder / "fl", "--no-advice")
    assert "it replaces the file of that name, -o FILE writes another" in second.words


def test_several_runs_are_compared(call: Call, folder: Path) -> None:
    answer = call("report", folder / "fedoptima", folder / "fl", "--no-advice")
    assert answer.code == 0
    assert "The mean device was idle least with fedoptima" in answer.words


def test_json_is_all_that_is_printed(call: Call, folder: Path) -> None:
    answer = call("report", folder / "fl", "--json", "--no-advice", "--quiet")
    said = json.loads(answer.out)
    assert said["path"] == "report.html"
    assert said["runs"][0]["usage"]["server"]["idle_2"] == 0
    assert said["advice"] is None
    assert answer.err == ""


def test_a_folder_without_a_run_is_the_users_error(call: Call, tmp_path: Path) -> None:
    answer = call("report", tmp_path)
    assert answer.code == 2
    assert "no run found here" in answer.complaint
    assert not (tmp_path / "report.html").exists()
