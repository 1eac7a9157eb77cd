from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.test_interrupt import PATIENCE, wait_for_checkpoint


def test_a_sweep_ends_with_a_table_and_its_files(call: Call, recipe: Path) -> None:
    answer = call(
        *("sweep", recipe, "--vary", "method.activation_cap=4,8", "--vary", "fleet.scale=1,0.5"),
        *("--methods", "fedoptima,fl", "--set", "fl.on_leave=wait", "--seeds", "2", "--dry"),
        *("-j", "1"),
    )
    assert answer.code == 0
    assert "tiny: 6 settings, 12 runs - only the timing" in answer.words
    assert max(map(len, answer.out.splitlines())) <= 80
    rows = [line.split() for line in answer.out.splitlines() if line.startswith(("fedopt", "fl"))]
    assert [row[:3] for row in rows] == [
        *(["fedoptima", cap, scale] for cap in ("4", "8") for scale in ("1", "0.5")),
        ["fl", "-", "1"],
        ["fl", "-", "0.5"],
    ]
    assert "results in runs/tiny-sweep: sweep.md, sweep.csv, sweep.html" in answer.words
    assert answer.err.splitlines()[0] == "sweeping in runs/tiny-sweep"
    assert "fl, fleet.scale=0.5 (seed 2): done: 0.9 epochs" in answer.err
    page = Path("runs/tiny-sweep/sweep.html").read_text()
    assert "fedoptima, fleet.scale=0.5" in page


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_sweep_is_resumed_and_its_finished_runs_are_kept(
    call: Call, start: Callable[..., subprocess.Popen[str]], recipe: Path, tmp_path: Path
) -> None:
    words = ("--vary", "fleet.scale=1,0.5", "--set", "stop.epochs=3", "-j", "1")
    process = start("sweep", recipe, *words, "--out", "out", "--checkpoint-every", "0.2")
    first, second = (
        tmp_path / f"out/fedoptima-fleet.scale={scale}-seed1" for scale in ("1", "0.5")
    )
    wait_for(first / "summary.json", process)
    wait_for_checkpoint(second, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)  # ends when its worker, too, has ended
    kept = (first / "summary.json").stat().st_mtime_ns
    assert not Path("out/sweep.md").exists()

    resumed = call("sweep", "--resume", "out", "-j", "1")
    assert resumed.code == 0
    assert (first / "summary.json").stat().st_mtime_ns == kept
    assert call("sweep", recipe, *words, "--out", "whole").code == 0
    assert Path("out/sweep.csv").read_text() == Path("whole/sweep.csv").read_text()
    assert Path("out/curves.csv").read_text() == Path("whole/curves.csv").read_text()

    again = call("sweep", recipe, *words, "--out", "out")  # nothing is left to do
    assert again.code == 0
    assert "starting" not in again.err
    assert (first / "summary.json").stat().st_mtime_ns == kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing is varied; for example: fedoptima sweep"),
        (["--vary", "pipr.micro_batches=2"], "did you mean 'pipar.micro_batches'?"),
        (["--vary", "pipar.micro_batches=2"], "add it to --methods, or leave this out"),
        (["--vary", "training.batch_sise=2"], "did you mean 'batch_size'?"),
        (["--vary", "fleet.scale=1", "--set", "fedoptima.actvation_cap=2"], "did you mean"),
        (["--resume", "here", "--vary", "a=1"], "leave out RECIPE, --vary"),
    ],
)
def test_what_cannot_work_ends_with_code_2_and_leaves_nothing(
    call: Call, recipe: Path, arguments: list[str], message: str
) -> None:
    answer = call("sweep", recipe, *arguments)
    assert answer.code == 2
    assert message in answer.complaint
    assert "sweeping in" not in answer.err
    assert not Path("runs").exists()


def test_a_comparison_is_not_resumed_as_a_sweep(call: Call, recipe: Path) -> None:
    assert call("compare", recipe, "--methods", "fl", "--dry", "-j", "1", "--out", "out").code == 0
    answer = call("sweep", "--resume", "out")
    assert answer.code == 2
    assert "resume it with: fedoptima compare --resume out" in answer.complaint


def test_an_option_of_one_method_reaches_it_alone_in_a_comparison_too(
    call: Call, recipe: Path
) -> None:
    answer = call(
        *("compare", recipe, "--methods", "pipar,splitfed", "--dry", "-j", "1", "--out", "out"),
        *("--set", "pipar.micro_batches=10", "--set", "method.on_leave=drop"),
        *("--set", "splitfed.on_leave=wait"),
    )
    assert answer.code == 0
    pipar, splitfed = (
        Path(f"out/{method}-seed1/config.json").read_text() for method in ("pipar", "splitfed")
    )
    assert '"micro_batches": 10' in pipar
    assert '"on_leave": "drop"' in pipar
    assert '"on_leave": "wait"' in splitfed
    assert call("compare", recipe, "--set", "pipar.micro=1").complaint.count("micro_batches") >= 1
