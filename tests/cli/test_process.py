"""What only shows in a real process: the path and pipes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

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
