"""The wheel that `make wheel` builds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.blocks import ROOT


def build_wheel(folder: Path) -> Path:
    """Needs hatchling, which pip fetches; skips where no package index can be reached."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--wheel-dir", str(folder), str(ROOT)]
    constraints = str(ROOT / "constraints.txt")
    bound = {"PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}
    done = subprocess.run(
        command, env={**os.environ, **bound}, capture_output=True, text=True, check=False
    )
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("pip cannot reach a package index for hatchling, which builds the wheel")
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("fedoptima-*.whl")
    return wheel
