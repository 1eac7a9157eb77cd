from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedoptima.analysis.quality import Quality
from fedoptima.comparison.execution import RunState
from fedoptima.display.comparison_progress import (
    PoolBars,
    PoolLines,
    SilentPool,
    picture,
    pool_view,
)
from tests.cli.conftest import Call
from tests.cli.test_interrupt import PATIENCE, wait_for_checkpoint

TRAINING = RunState(
    "fl", 1, "training", 0.5, seconds=61.0, epochs=2.5, quality=Quality("accuracy", 0.9, 0.9)
)


def test_a_comparison_ends_with_one_table_and_where_it_is(call: Call, recipe: Path) -> None:
    answer = call("compare", recipe, "--methods", "fedoptima,fl", "--dry", "-j", "1")
    assert answer.code == 0
    assert "tiny: 2 methods, seed 1 - only the timing" in answer.words
    head = next(line for line in answer.out.splitlines() if "fedoptima" in line and "fl" in line)
    assert head.split() == ["fedoptima", "fl"]
    figures = ("server idle, s/epoch", "device idle II, s/epoch", "device samples/s")
    shares = ("server idle, %", "device idle I, %", "useful samples/s")
    for figure in (*figures, *shares, "MB up/epoch", "MB down/epoch", "peak server MiB"):
        [line] = [line for line in answer.out.splitlines() if line.startswith(figure)]
        assert len(line.removeprefix(figure).split()) == 2
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "results in runs/tiny-compare" in answer.words
    kept = {path.name for path in Path("runs/tiny-compare").iterdir()}
    assert kept == {
        *("comparison.json", "comparison.md", "curves.csv"),
        *("fedoptima-seed1", "fl-seed1"),
    }
    assert answer.err.splitlines()[0] == "comparing in runs/tiny-compare"
    assert "fedoptima (seed 1): starting" in answer.err
    assert "fl (seed 1): done: 0.9 epochs, 14.4 s" in answer.err


def test_seven_methods_and_their_spread_over_seeds_fit_in_80_columns(
    call: Call, recipe: Path
) -> None:
    answer = call(
        *("compare", recipe, "--seed", "3", "--seed", "8", "--set", "stop.epochs=0.1"),
        *("--set", "training.iterations=1", "--out", "out", "--target", "0.05", "-q", "-j", "1"),
    )
    assert answer.code == 0
    assert answer.err == ""
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "…" not in answer.out
    assert "tiny: 7 methods, seeds 3, 8" in answer.words
    assert "final accuracy, %" in answer.words
    assert "time to 5.0 %, s" in answer.words
    assert "±" in answer.out
    assert "Target: 5.00 % (given)." in answer.words
    assert len(list(Path("out").glob("*-seed8/summary.json"))) == 7


def test_a_failed_run_is_said_and_the_exit_code_is_1(call: Call, recipe: Path) -> None:
    answer = call(
        *("compare", recipe, "--methods", "fedoptima,fl", "--dry", "--json", "-j", "1"),
        *("--set", "method.activation_cap=0", "--out", "out"),
    )
    assert answer.code == 1
    assert "error: fedoptima (seed 1): method.activation_cap = 0: must be" in answer.complaint
    assert "Traceback" not in answer.err
    result = json.loads(answer.out)
    assert result == json.loads(Path("out/comparison.json").read_text())
    fedoptima, fl = result["rows"]
    assert "activation_cap" in fedoptima["errors"]["1"]
    assert fl["mean"]["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "fedavg"], "method.name = 'fedavg': unknown"),
        (["--set", "method.buffr=3"], "did you mean 'buffer'?"),
        (["--set", "method.name=fl"], "takes its methods from --methods"),
        (["--seeds", "2", "--seed", "3"], "give one"),
        (["--resume", "here", "--dry"], "leave out RECIPE, --dry"),
        (["--target", "80"], "0.8 is 80 %"),
    ],
)
def test_what_cannot_work_ends_with_code_2_and_leaves_nothing(
    call: Call, recipe: Path, arguments: list[str], message: str
) -> None:
    answer = call("compare", recipe, *arguments)
    assert answer.code == 2
    assert message in answer.complaint
    assert not Path("runs").exists()


def test_ctrl_c_stops_all_and_resume_goes_on(
    call: Call, start: Callable[..., subprocess.Popen[str]], recipe: Path, tmp_path: Path
) -> None:
    process = start(
        *("compare", recipe, "--methods", "fl", "--seeds", "1", "-j", "1", "--out", "out"),
        *("--set", "stop.epochs=4", "--checkpoint-every", "0.2"),
    )
    wait_for_checkpoint(tmp_path / "out/fl-seed1", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)  # ends when no worker holds its output
    assert process.returncode == 130
    assert out == ""
    assert "stopped; resume with: fedoptima compare --resume out" in err
    assert "Traceback" not in err
    assert not Path("out/comparison.md").exists()

    resumed = call("compare", "--resume", "out", "-j", "1")
    assert resumed.code == 0
    assert Path("out/fl-seed1/summary.json").exists()
    assert Path("out/comparison.md").exists()


def test_without_ray_the_command_that_installs_it_is_named(
    call: Call, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    answer = call("compare", recipe, "--on", "ray", "--dry")
    assert answer.code == 2
    assert "--on ray needs ray: pip install 'fedoptima[ray]'" in answer.complaint
    assert call("compare", recipe, "--gpus", "1").complaint == "error: --gpus: only with --on ray"


def drawn(states: list[RunState], height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=height)
    console.print(picture(states, height))
    assert isinstance(console.file, io.StringIO)
    return [line for line in console.file.getvalue().splitlines() if line.strip()]


def test_a_terminal_sees_a_bar_for_every_run() -> None:
    failed = RunState("oafl", 1, "failed", error="a long story")
    lines = drawn([TRAINING, RunState("fedbuff", 1), failed])
    assert "fl (seed 1)" in lines[0]
    assert "2.5 epochs, 1 min 01 s, 90.0 %" in lines[0]
    assert "waiting" in lines[1]
    assert lines[2].rstrip().endswith("failed")
    assert lines[3].strip() == "1 of 3 runs"


def test_more_runs_than_lines_show_only_those_that_go_on() -> None:
    many = [RunState("fl", seed, "done", 1.0) for seed in range(2, 30)]
    lines = drawn([*many, TRAINING], height=10)
    assert len(lines) == 2
    assert "fl (seed 1)" in lines[0]
    assert lines[1].strip() == "28 of 29 runs"


def test_a_file_gets_a_line_at_the_begin_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with PoolLines("comparing") as view:
        waiting = RunState("fl", 1)
        for state in (
            waiting,
            replace(waiting, phase="starting"),
            replace(waiting, phase="reading"),
            TRAINING,
            replace(TRAINING, phase="failed", error="loss is nan"),
        ):
            view.show([state])
            view.show([state])
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["comparing", "fl (seed 1): starting", "fl (seed 1): failed: loss is nan"]


def test_what_is_seen_depends_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(pool_view("comparing", quiet=False), PoolBars)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(pool_view("comparing", quiet=False), PoolLines)
    assert type(pool_view("comparing", quiet=True)) is SilentPool


def test_bars_are_drawn_while_runs_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with PoolBars("comparing") as view:
        view.show([TRAINING])
    shown = capsys.readouterr().err
    assert "comparing" in shown
    assert "2.5 epochs" in shown


def test_the_protocol_decides_how_long_methods_train(call: Call, recipe: Path) -> None:
    words = ("--methods", "fedoptima,fl", "--dry", "-j", "1", "--json")
    before = call("compare", recipe, *words, "--out", "before")
    assert "- stop: `epochs = 1`" in Path("before/comparison.md").read_text()
    seconds = json.loads(before.out)["rows"][0]["mean"]["seconds"]
    time_of = ("--protocol", "time", "--time-of", "before")
    answer = call("compare", recipe, *words, *time_of, "--out", "after")
    stop = json.loads(answer.out)["about"]["recipe"]["stop"]
    assert stop["hours"] == pytest.approx(seconds / 3600)
    assert [key for key, value in stop.items() if value is not None] == ["hours"]


def test_a_protocol_that_cannot_be_carried_out_is_refused_with_the_way_out(
    call: Call, recipe: Path
) -> None:
    answer = call("compare", recipe, "--time-of", "before")
    assert answer.complaint == "error: --time-of: only with --protocol time"
    by_accuracy = ("--set", "stop={patience=3}", "--protocol", "time")
    assert "--time-of" in call("compare", recipe, *by_accuracy).complaint


def test_a_comparison_says_which_settings_are_of_one_method(call: Call, recipe: Path) -> None:
    own = "methods={pipar={micro_batches=4, split={at=2}, training={device={momentum=0.5}}}}"
    words = ("--methods", "pipar,fl", "--set", "fl.training.iterations=2", "--dry", "-j", "1")
    answer = call("compare", recipe, "--set", own, *words, "--out", "out")
    assert answer.code == 0
    assert "With settings of their own, by the recipe's `methods`: pipar." in answer.words
    markdown = Path("out/comparison.md").read_text()
    for setting in ("micro_batches = 4", "training.device.momentum = 0.5", "split.at = 2"):
        assert f"`pipar.{setting}`" in markdown
    assert "`fl.training.iterations = 2`" in markdown
    assert call("compare", "--resume", "out", "-j", "1").code == 0
