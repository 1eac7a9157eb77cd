from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedoptima.reproduction.catalogue import read_catalogue
from fedoptima.reproduction.records import read_records
from tests.cli.conftest import Call
from tests.cli.test_interrupt import PATIENCE
from tests.reproduction.paper import folder

__all__ = ["folder"]
ROOT = Path(__file__).parents[2]


def test_the_list_names_every_figure_with_its_place_and_its_runs(call: Call, folder: Path) -> None:
    answer = call("reproduce", "--list", "--recipes", folder)
    assert answer.code == 0
    rows = {line.split()[0]: line for line in answer.out.splitlines() if line[:1].islower()}
    assert {"idle", "traffic", "cap", "accuracy", "auxiliary", "split"} <= set(rows)
    assert rows["idle"].split()[1:] == ["Fig.", "8", "dry", "Idle", "time", "6", "0"]
    assert "dry," in answer.words


def test_a_figure_that_is_not_there_is_an_error_with_the_names(call: Call, folder: Path) -> None:
    answer = call("reproduce", "idel", "--recipes", folder)
    assert answer.code == 2
    assert "idel: no figure is called so; did you mean idle?" in answer.complaint


def test_only_runs_of_the_named_workloads_are_made(call: Call, folder: Path) -> None:
    words = ("reproduce", "idle", "--recipes", folder, "--out", "out", "--limit-seconds", "0")
    assert "0 of 3 runs are finished" in call(*words, "--workloads", "small", "-j", "1").words
    assert "0 of 6 runs are finished" in call(*words, "--workloads", "small,tiny").words
    answer = call(*words, "--workloads", "smal")
    assert answer.code == 2
    assert "--workloads smal: there are tiny, small" in answer.complaint


def test_only_runs_of_the_named_methods_are_made(call: Call, folder: Path) -> None:
    words = ("reproduce", "idle", "--recipes", folder, "--out", "out", "--limit-seconds", "0")
    assert "0 of 2 runs are finished" in call(*words, "--methods", "fl").words
    assert "0 of 4 runs are finished" in call(*words, "--methods", "fl,pipar").words
    answer = call(*words, "--methods", "fll")
    assert answer.code == 2
    assert "did you mean" in answer.complaint


def test_outside_a_checkout_the_way_out_is_said(call: Call) -> None:
    answer = call("reproduce", "--list")
    assert answer.code == 2
    assert "call this in a checkout of it" in answer.complaint


def wait_for_a_record(out: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (out.is_dir() and read_records(out)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_after_a_kill_no_finished_run_is_repeated(
    call: Call, start: Callable[..., subprocess.Popen[str]], folder: Path, tmp_path: Path
) -> None:
    words = ("reproduce", "idle", "--recipes", folder, "--out", "out", "-j", "1")
    process = start(*words)
    wait_for_a_record(tmp_path / "out", process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)  # ends when its worker, too, has ended
    before = read_records(tmp_path / "out")

    again = call(*words)
    assert again.code == 0
    assert "6 of 6 runs are finished; results in out" in again.words
    after = read_records(tmp_path / "out")
    assert len(after) == 6
    assert all(after[run] == record for run, record in before.items())  # with its wall time
    assert Path("out/figures/idle.svg").is_file()

    idle = call(
        "reproduce", "idle", "--recipes", folder, "--out", "other", "--merge", "out", "--draw"
    )
    assert "6 runs taken over from out" in idle.complaint
    assert "6 of 6 runs are finished" in idle.words
    assert not Path("other/runs").exists()


def test_nothing_is_begun_when_the_time_is_up(call: Call, folder: Path) -> None:
    answer = call(
        *("reproduce", "traffic", "--recipes", folder, "--out", "out", "--limit-seconds", "0"),
        *("-j", "1"),
    )
    assert answer.code == 0
    assert "of 1 runs are finished" in answer.words


@pytest.mark.slow
def test_all_figures_are_reproduced_quickly(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = call("reproduce", "--quick", "--recipes", ROOT / "recipes/paper", "--out", out, "-q")
    assert answer.code == 0, answer.err
    drawn = {path.stem for path in (out / "figures").glob("*.svg")}
    assert drawn == set(read_catalogue(ROOT / "recipes" / "paper").figures)
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.json")}
    again = call("reproduce", "--quick", "--recipes", ROOT / "recipes/paper", "--out", out, "-q")
    assert again.code == 0
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("*.json")}
