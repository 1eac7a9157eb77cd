"""A recipe small enough to be run many times, and a model whose process dies once."""

from __future__ import annotations

from pathlib import Path

from fedoptima.comparison.result import Comparison
from fedoptima.config.load import load_recipe
from fedoptima.config.schema import Recipe
from tests.cli.conftest import TINY

CRASHES_ONCE = """
import os, signal
from pathlib import Path
from torch import nn

def network(classes):
    mark = Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


def tiny(folder: Path, *changes: str) -> Recipe:
    path = folder / "tiny.toml"
    path.write_text(TINY)
    return load_recipe(path, changes)


def digests(comparison: Comparison) -> dict[str, tuple[str, str]]:
    return {f"{r.label} {r.seed}": (r.trace_digest, r.weights_digest) for r in comparison.runs}
