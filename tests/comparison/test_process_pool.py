"""Worker processes that do one run after the other."""

from __future__ import annotations

import gc
import os
import signal
import sys
import weakref
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest
from torch import nn

from fedoptima.comparison import process_pool
from fedoptima.comparison.execution import Line, Order, RunState
from fedoptima.comparison.pool import Lost
from fedoptima.comparison.process_pool import ProcessPool
from fedoptima.experiments.given import Given
from tests.comparison.recipes import tiny
from tests.support.leftovers import OfAThread
from tests.support.network import until


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


def test_a_forked_worker_does_not_finalise_what_the_parent_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "grpc", raising=False)
    monkeypatch.setattr(process_pool, "execute", lambda *_: None)
    finalised = tmp_path / "finalised"
    order = Order(tiny(tmp_path), tmp_path / "run", dry=False, checkpoint_every=60.0)
    gc.disable()  # here it would be collected
    try:
        OfAThread(finalised)
        with ProcessPool(1, Given(nn.Linear(2, 2))) as pool:
            assert pool.forks
            pool.start(0, order)
            (worker,) = pool._workers
            worker.send("stop")
            news: list[object] = []
            while not news:
                news = [state for _, state in pool.news()]
        assert isinstance(news[0], Lost)  # it has ended, and had collected after the run
        assert not finalised.exists()
    finally:
        gc.enable()
    gc.collect()
    assert finalised.read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize(("device", "same"), [("cpu", True), ("cuda", False)])
def test_a_worker_whose_run_has_failed_on_a_gpu_does_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, same: bool
) -> None:
    """After an error of CUDA its next run would be lost, whatever it was."""
    monkeypatch.delitem(sys.modules, "grpc", raising=False)

    def fails(order: Order, line: Line, given: Given) -> None:
        line.send(replace(RunState.of(order), phase="failed", error=str(os.getpid())))

    monkeypatch.setattr(process_pool, "execute", fails)
    recipe = tiny(tmp_path).model_copy(update={"device": device})
    found: list[str | None] = []
    with ProcessPool(1, Given(nn.Linear(2, 2))) as pool:
        for index in range(2):
            pool.start(index, Order(recipe, tmp_path / "run", dry=False, checkpoint_every=60.0))
            while len(found) <= index:
                found += [state.error for _, state in pool.news() if isinstance(state, RunState)]
    assert len(found) == 2
    assert (found[0] == found[1]) is same


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_is_left_of_a_worker_that_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.delitem(sys.modules, "grpc", raising=False)
    monkeypatch.setattr(process_pool, "execute", lambda *_: os._exit(7))
    recipe = tiny(tmp_path).model_copy(update={"device": device})
    with ProcessPool(1, Given(nn.Linear(2, 2))) as pool:
        before = len(os.listdir("/proc/self/fd"))
        pool.start(0, Order(recipe, tmp_path / "run", dry=False, checkpoint_every=60.0))
        found: list[object] = []
        while not found:
            found += [news for _, news in pool.news()]
        assert found == [Lost("its process ended with exit code 7")]
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_worker_that_does_not_end_when_it_is_asked_to_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the parent's handler until it has begun."""
    monkeypatch.delitem(sys.modules, "grpc", raising=False)
    monkeypatch.setattr(process_pool, "_GRACE", 0.1)
    began, deaf = tmp_path / "began", signal.SIG_IGN

    def never_ends(*_: object) -> None:
        signal.signal(signal.SIGTERM, deaf)
        began.touch()
        while True:
            signal.pause()

    monkeypatch.setattr(process_pool, "execute", never_ends)
    with ProcessPool(1, Given(nn.Linear(2, 2))) as pool:
        pool.start(0, Order(tiny(tmp_path), tmp_path / "run", dry=False, checkpoint_every=60.0))
        (process,) = pool._workers.values()
        until(began.exists, "the run has begun")
    assert process.exitcode == -signal.SIGKILL
