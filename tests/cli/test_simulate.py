from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedoptima.core.types import SERVER
from tests.cli.conftest import TINY, Call


def test_a_run_ends_with_its_figures_and_where_they_are(call: Call, recipe: Path) -> None:
    answer = call("simulate", recipe)
    assert answer.code == 0
    assert "tiny: fedoptima, seed 1 - 1 epoch done" in answer.words
    for figure in ("accuracy", "virtual time", "throughput", "traffic", "trace", "weights"):
        assert figure in answer.words
    for node in (SERVER, "fast-1", "fast-2", "slow", "all 3 devices"):
        assert node in answer.words
    assert "results in runs/tiny-fedoptima-seed1" in answer.words
    kept = {path.name for path in Path("runs/tiny-fedoptima-seed1").iterdir()}
    assert {"config.json", "trace.jsonl.gz", "metrics.csv", "summary.json"} <= kept


def test_progress_goes_to_stderr_and_names_the_folder_first(call: Call, recipe: Path) -> None:
    answer = call("simulate", recipe, "--dry", "--out", "here")
    assert answer.err.splitlines()[0] == "tiny: fedoptima, seed 1, in here"
    assert "in here" not in answer.out.splitlines()[0]


def test_quiet_shows_only_the_result(call: Call, recipe: Path) -> None:
    answer = call("simulate", recipe, "--dry", "--quiet")
    assert answer.err == ""
    assert "1 epoch done" in answer.out


def test_json_is_the_result_and_nothing_else(call: Call, recipe: Path) -> None:
    answer = call("simulate", recipe, "--json", "--out", "here")
    result = json.loads(answer.out)
    assert result == json.loads(Path("here/summary.json").read_text())
    assert 0 < result["accuracy"] <= 1
    assert result["directory"] == "here"


def test_a_second_run_gets_a_fresh_folder(call: Call, recipe: Path) -> None:
    for _ in range(2):
        assert call("simulate", recipe, "--dry", "-q").code == 0
    assert {path.name for path in Path("runs").iterdir()} == {
        "tiny-fedoptima-seed1",
        "tiny-fedoptima-seed1-2",
    }


def test_flags_replace_what_the_recipe_says(call: Call, recipe: Path) -> None:
    answer = call(
        *("simulate", recipe, "--dry", "--json", "--seed", "7"),
        *("--set", "stop.epochs=2", "--set", "name=other", "--method", "fl"),
    )
    result = json.loads(answer.out)
    assert (result["seed"], result["name"], result["method"]) == (7, "other", "fl")
    assert result["epochs"] == pytest.approx(2, abs=0.5)  # of whole rounds, the nearest
    assert Path("runs/other-fl-seed7").is_dir()


def test_another_method_begins_with_its_own_defaults(call: Call, recipe: Path) -> None:
    recipe.write_text(TINY + '\n[method]\nname = "fedoptima"\nactivation_cap = 5\n')
    assert call("simulate", recipe, "--dry", "--method", "fl").code == 0
    call("simulate", recipe, "--dry", "--method", "fedoptima", "--out", "same")
    kept = json.loads(Path("same/config.json").read_text())
    assert kept["recipe"]["method"]["activation_cap"] == 5


def test_an_option_set_on_the_command_line_belongs_to_the_method_named_there(
    call: Call, recipe: Path
) -> None:
    recipe.write_text(TINY + '\n[method]\nname = "fedoptima"\nactivation_cap = 5\n')
    answer = call(
        "simulate", recipe, "--dry", "--set", "method.on_leave=wait", "--method", "fl", "--out", "x"
    )
    assert answer.code == 0
    kept = json.loads(Path("x/config.json").read_text())
    assert kept["recipe"]["method"] == {"name": "fl", "on_leave": "wait"}


def test_many_devices_are_shown_by_the_idlest_and_their_mean(call: Call, recipe: Path) -> None:
    devices = '[{name="d", count=30, gflops=1}]'
    answer = call("simulate", recipe, "--dry", "--set", f"fleet.devices={devices}")
    assert sum(line.lstrip().startswith("d-") for line in answer.out.splitlines()) == 16
    assert "(14 busier ones)" in answer.words
    assert "all 30 devices" in answer.words


def test_every_line_fits_in_80_columns_without_colour(
    call: Call, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    answer = call("simulate", recipe, "--dry", "--method", "fl")
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "\x1b" not in answer.out + answer.err


def test_updates_that_were_refused_are_said(call: Call, recipe: Path) -> None:
    answer = call("simulate", recipe, "--dry", "--set", "method.max_delay=0")
    assert re.search(
        r"\d+ updates, too late, or of .* undid \([\d,]+ samples, in no epoch\)", answer.words
    )


def test_resuming_a_run_that_is_over_prints_its_result_again(call: Call, recipe: Path) -> None:
    first = call("simulate", recipe, "--out", "here", "--set", "data.validation=0.2")
    assert "test accuracy" in first.out
    again = call("simulate", "--resume", "here")
    assert again.code == 0
    assert again.out == first.out
    told = json.loads(call("simulate", "--resume", "here", "--json").out)
    assert told == json.loads(Path("here/summary.json").read_text())


def test_a_dry_run_needs_no_data_on_disk_and_says_what_it_assumes(
    call: Call, recipe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDOPTIMA_DATA", str(tmp_path / "nothing"))
    said = call("simulate", recipe, "--dry", "--set", "data.name=mnist")
    assert said.code == 0
    assert "'mnist' is not on disk" in said.complaint
    assert "60,000 training samples" in said.complaint


def test_resume_takes_nothing_that_would_change_the_run(call: Call, recipe: Path) -> None:
    answer = call("simulate", recipe, "--resume", "here", "--seed", "3", "--dry")
    assert answer.code == 2
    assert "leave out RECIPE, --seed, --dry" in answer.complaint
