"""A run is paused and stopped from another terminal, listed, and goes on."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

from fedoptima.experiments.run_directory import RunDirectory
from tests.cli.conftest import Call
from tests.cli.test_interrupt import wait_for_checkpoint

Start = Callable[..., "subprocess.Popen[str]"]


def state_of(call: Call, folder: str) -> str:
    (row,) = json.loads(call("runs", folder, "--json").out)
    return str(row["state"])


def test_a_servers_addresses_and_certificates_are_not_forgotten_by_the_way_on(
    call: Call, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    recipe = {"name": "tiny", "model": {"name": "vgg5"}, "data": {"name": "digits"}}
    kept = {"recipe": {**recipe, "stop": {"rounds": 1}}, "dry": False, "mode": "network"}
    kept |= {"method": {"name": "fl"}, "devices": 1, "starts_with": 1, "activation_cap": None}
    kept["versions"] = {}
    (run / "config.json").write_text(json.dumps(kept))
    answer = call("pause", run)
    assert f"it can be resumed with: fedoptima server --resume --run-dir {run}" in answer.complaint
    assert "with its other options: --listen, certificates" in answer.complaint


def test_a_run_is_paused_resumed_and_stopped_from_another_terminal(
    call: Call, start: Start, recipe: Path, tmp_path: Path
) -> None:
    endless = ("--set", "stop.epochs=1000000", "--checkpoint-every", "0.2", "--workers", "1")
    process = start("simulate", recipe, *endless, "--out", "run")
    wait_for_checkpoint(tmp_path / "run", process)
    assert state_of(call, "run") == "running"
    answer = call("pause", "run")
    assert answer.code == 0
    assert answer.out == "paused; resume with: fedoptima simulate --resume run\n"
    process.communicate(timeout=180)
    assert process.returncode == 130
    assert state_of(call, "run") == "interrupted"

    assert call("pause", "run").code == 2
    assert "no process on this machine is executing this run" in call("stop", "run").complaint

    command = shlex.split(answer.out.partition("resume with: fedoptima ")[2])
    process = start(*command, "--checkpoint-every", "0.2", "--workers", "1")
    until_taken(tmp_path / "run", process)
    answer = call("stop", "run")
    assert answer.code == 0, answer.err
    assert "stopped by its operator; its result is in run/summary.json" in answer.words
    assert "fedoptima simulate --resume run --extend stop.epochs=N" in answer.words
    process.communicate(timeout=180)
    assert process.returncode == 0
    assert state_of(call, "run") == "finished"
    assert "this run is over" in call("stop", "run").complaint
    assert call("replay", "run", "--weights").code == 0


def until_taken(run: Path, process: subprocess.Popen[str]) -> None:
    while not RunDirectory(run).executed:
        assert process.poll() is None, process.communicate()


def test_a_finished_run_is_extended(call: Call, recipe: Path) -> None:
    assert call("simulate", recipe, "--set", "stop.epochs=1", "--out", "run").code == 0
    over = call("simulate", "--resume", "run", "--json")
    assert json.loads(over.out)["reason"] == "1 epoch done"
    answer = call("simulate", "--resume", "run", "--extend", "stop.epochs=2", "--json")
    assert answer.code == 0, answer.err
    assert "going on to stop.epochs = 2 instead of 1" in answer.err
    assert json.loads(answer.out)["reason"] == "2 epochs done"
    assert call("replay", "run", "--weights").code == 0
    for wrong in ("training.batch_size=4", "stop.epochs"):
        assert call("simulate", "--resume", "run", "--extend", wrong).code == 2
    assert "--extend needs --resume" in call("simulate", recipe, "--extend", "a=1").complaint


def test_runs_are_listed_with_what_they_reached(call: Call, recipe: Path, tmp_path: Path) -> None:
    call("simulate", recipe, "--set", "stop.epochs=1", "--out", "all/one", "--method", "fl")
    call("compare", recipe, "--methods", "fl", "--dry", "-j", "1", "--out", "all/compare")
    failed = RunDirectory(tmp_path / "all" / "one")
    answer = call("runs", "all")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].split() == ["name", "method", "state", "epochs", "accuracy", "age", "path"]
    assert {line.split()[-1] for line in lines[1:]} == {"all/one", "all/compare/fl-seed1"}
    assert "fl (dry)" in answer.out
    (tmp_path / "all" / "one").rename(tmp_path / "all" / f"a{'-long' * 15}-name")
    assert f"all/a{'-long' * 15}-name" in call("runs", "all").out  # not a terminal: unbroken
    (tmp_path / "all" / f"a{'-long' * 15}-name").rename(tmp_path / "all" / "one")
    failed.summary.unlink()
    failed.write_failure("the loss is not finite")
    answer = call("runs", "all")
    assert "all/one failed: the loss is not finite" in answer.words
    assert call("runs", "nowhere").code == 2
    (tmp_path / "empty").mkdir()
    assert "no runs in empty" in call("runs", "empty").out


def test_a_run_is_listed_whatever_its_files_are(call: Call, recipe: Path, tmp_path: Path) -> None:
    """A folder may come from somebody else."""
    call("simulate", recipe, "--dry", "--set", "stop.epochs=1", "--out", "run")
    run, secret = RunDirectory(tmp_path / "run"), tmp_path / "secret"
    run.summary.unlink()
    secret.write_text("precious")
    run.failure.symlink_to(secret)
    run.metrics.rename(tmp_path / "metrics")
    run.metrics.symlink_to(tmp_path / "metrics")
    (row,) = json.loads(call("runs", "run", "--json").out)
    assert row["failure"] == "failure.txt cannot be read"
    assert row["epochs"] is None
    run.failure.unlink()
    run.failure.write_bytes(b"\xff")
    assert "run failed: failure.txt cannot be read" in call("runs", "run").words
