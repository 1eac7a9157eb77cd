"""Which line of a model's code an error comes from, and what is left when it cannot be cut."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from fedoptima.core.errors import ConfigError
from fedoptima.preprocess.split import METHODS_WITHOUT_SPLIT


class CannotTrace(ConfigError):
    """No graph of the model can be made."""


WAY_OUT = (
    "name a module after which to cut (split.at = 'encoder.layer.2'), write the model as an "
    "nn.Sequential of blocks, or use a method that does not split the model: "
    + ", ".join(METHODS_WITHOUT_SPLIT)
)

_NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parents[1])


def line_of(error: BaseException) -> str:
    """Where in the model's own code ``error`` was raised: " (file.py, line 3: the code)", or ""."""
    seen: set[int] = set()
    frames: list[traceback.FrameSummary] = []
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        # The first cause is the nearest to the line that is meant.
        frames = [f for f in traceback.extract_tb(current.__traceback__) if _users(f)] or frames
        current = current.__cause__ or current.__context__
    if not frames:
        return ""
    last = frames[-1]
    return f" ({last.filename}, line {last.lineno}: {last.line})"


def reason_of(error: BaseException) -> str:
    """The first line of what it says, with its kind."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def _users(frame: traceback.FrameSummary) -> bool:
    if frame.filename.startswith("<"):
        return False
    path = Path(frame.filename)
    return not any(path.is_relative_to(folder) for folder in _NOT_THE_USERS) and (
        "contextlib" not in path.name
    )
