"""What only shows in a real process: the path, pipes, and where its output goes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Start = Callable[..., subprocess.Popen[str]]

OWN_MODEL = """
from torch import nn

def build(channels, image_size, classes):
    width = channels * image_size**2
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, classes))
"""


def test_models_in_the_current_folder_are_found(start: Start, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_MODEL)
    process = start("simulate", recipe, "--quiet", "--set", "model.name=own:build")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "results in runs/tiny-fedoptima-seed1" in out


def test_a_reader_that_goes_away_is_no_error(start: Start) -> None:
    process = start("methods")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait()


def redirected(folder: Path, how: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "fedoptima", *words]
    shell = ["sh", "-c", f'exec "$@" {how}', "sh", *command]
    return subprocess.run(shell, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", ["2>/dev/full", "2>&-", "<&- 2>&-", ">&-"])
def test_a_run_needs_nobody_to_hear_of_it(how: str, recipe: Path, tmp_path: Path) -> None:
    found = redirected(tmp_path, how, "simulate", "tiny.toml", "--out", "run")
    assert found.returncode == 0
    assert "Traceback" not in found.stderr
    assert ("results in run" in found.stdout) == (how != ">&-")
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("words", [("methods",), ("runs", ".", "--json")])
def test_a_result_for_which_there_is_no_room_is_an_error(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    found = redirected(tmp_path, ">/dev/full", *words)
    assert found.returncode == 1
    assert (
        found.stderr == "error: the output or a file cannot be written: No space left on device\n"
    )


def test_what_is_closed_at_the_start_is_no_file_of_the_run(tmp_path: Path) -> None:
    """What libraries in C print would be written into it."""
    report = "import os, fedoptima.cli as c; c._open_what_is_closed(); os.open('/dev/null', 0); "
    report += "print(*(os.readlink(f'/proc/self/fd/{n}') for n in (0, 2)), os.get_inheritable(2))"
    shell = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-c", report]
    found = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout == "/dev/null /dev/null True\n"  # processes that it starts have it, too
