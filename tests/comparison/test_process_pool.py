"""Worker processes that do one run after the other."""

from __future__ import annotations

import gc
import weakref
from multiprocessing import Pipe
from pathlib import Path

import pytest

from fedoptima.comparison import process_pool
from fedoptima.comparison.execution import Order
from fedoptima.experiments.given import Given
from tests.comparison.recipes import tiny


class _Engine:
    """Refers to itself, as engines and their recorded steps do."""

    def __init__(self) -> None:
        self.steps = [self]


def test_nothing_of_a_run_is_left_when_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[_Engine]] = []
    left: list[int] = []

    def run(*_: object) -> None:
        left.append(sum(engine() is not None for engine in held))
        held.append(weakref.ref(_Engine()))

    monkeypatch.setattr(process_pool, "execute", run)
    order = Order(tiny(tmp_path), tmp_path / "run", dry=False, checkpoint_every=60.0)
    ours, theirs = Pipe()
    for message in (order, order, "stop"):
        ours.send(message)
    gc.disable()  # by chance it might come in between
    try:
        process_pool._serve(theirs, Given())
    finally:
        gc.enable()
    assert left == [0, 0]
