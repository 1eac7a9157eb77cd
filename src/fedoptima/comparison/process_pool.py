"""Many runs in parallel: a few worker processes, each of which does one run after the other.

A process that dies loses only its own run (an executor's pool would be broken for all). Parent and
worker share one pipe: the parent sends orders, the worker sends its progress. Anything else that
the worker can read during a run means stop: a message from the parent, or the end of the parent.
"""

from __future__ import annotations

import logging
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal

from fedoptima.config.schema import Recipe
from fedoptima.core.errors import FedOptimaError
from fedoptima.experiments.fork_server import ctrl_c_blocked
from fedoptima.experiments.simulated_run import Interrupted, SimulationWatch
from fedoptima.named_code import ANY_CODE, AllowedCode
from fedoptima.trace.run_folder import RunFiles

_POLL_INTERVAL = 0.1  # seconds between two reads of the pipe
_REPORT = 0.25  # seconds between two reports of a run

Phase = Literal["waiting", "starting", "reading", "training", "done", "stopped", "failed"]
_OVER = ("done", "stopped", "failed")


@dataclass(frozen=True)
class Order:
    """A run to start in ``directory``, or to resume if it is there already."""

    recipe: Recipe
    directory: Path
    dry: bool
    checkpoint_every: float
    code: AllowedCode = ANY_CODE  # what the recipe may name

    @property
    def crash_report(self) -> Path:
        """Next to the run's own folder, which must stay unchanged to be resumed."""
        return self.directory.with_name(f"{self.directory.name}.error.txt")


@dataclass(frozen=True)
class RunState:
    """How far one run has come."""

    method: str
    seed: int
    phase: Phase = "waiting"
    share: float | None = None  # of its budget; None: not known, or only accuracy ends it
    seconds: float = 0.0  # on the run's clock
    epochs: float = 0.0
    accuracy: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, order: Order) -> RunState:
        return cls(order.recipe.method.name, order.recipe.seed)

    @property
    def over(self) -> bool:
        return self.phase in _OVER


PoolObserver = Callable[[Sequence[RunState]], None]  # called about ten times a second


def run_all(
    orders: Sequence[Order],
    *,
    jobs: int,
    observer: PoolObserver = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[RunState]:
    """Execute all orders, ``jobs`` at a time, and return how each ended.

    Once ``interrupted`` returns True, started runs save a checkpoint and end as "stopped", and no
    other is started. An exception in here (a second Ctrl-C) ends all processes at once.
    """
    states = [RunState.of(order) for order in orders]
    waiting = deque(range(len(orders)))
    workers: dict[Connection, SpawnProcess] = {}
    busy: dict[Connection, int] = {}  # with which run
    stopping = False
    try:
        while busy or (waiting and not stopping):
            while waiting and len(busy) < jobs and not stopping:
                worker = next((w for w in workers if w not in busy), None) or _start(workers)
                index = busy[worker] = waiting.popleft()
                states[index] = replace(states[index], phase="starting")
                with suppress(OSError):  # it has died: handled below
                    worker.send(orders[index])
            for worker in _readable(busy):
                index = busy[worker]
                try:
                    states[index] = worker.recv()
                except (EOFError, OSError):
                    error = _died(workers.pop(worker))
                    states[index] = replace(states[index], phase="failed", error=error)
                if states[index].over:
                    del busy[worker]
            observer(tuple(states))
            if not stopping and interrupted():
                stopping = True
                for worker in busy:
                    with suppress(OSError):
                        worker.send("stop")
    finally:
        for process in workers.values():
            process.terminate()
        for process in workers.values():
            process.join()
    return states


def _start(workers: dict[Connection, SpawnProcess]) -> Connection:
    context = get_context("spawn")  # not fork: CUDA and torch's threads do not survive it
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    with ctrl_c_blocked():
        process.start()
        workers[ours] = process
    theirs.close()  # so that the end of the process is the end of the pipe
    return ours


def _readable(connections: Iterable[Connection]) -> Iterator[Connection]:
    for ready in wait(list(connections), timeout=_POLL_INTERVAL):
        assert isinstance(ready, Connection)
        yield ready


def _died(process: SpawnProcess) -> str:
    process.join()
    code = process.exitcode or 0
    if code >= 0:
        return f"its process ended with exit code {code}"
    hint = "; was there enough memory? try fewer --jobs" if code == -signal.SIGKILL else ""
    return f"its process was ended by {signal.Signals(-code).name}{hint}"


# ---- in a worker's process -------------------------------------------------------------------


def _work(connection: Connection) -> None:
    logging.getLogger("fedoptima").addHandler(logging.NullHandler())  # `compare` logs
    with suppress(EOFError):  # the parent has ended
        while isinstance(order := connection.recv(), Order):
            _do(order, _Reporter(order, connection))


def _do(order: Order, reporter: _Reporter) -> None:
    order.crash_report.unlink(missing_ok=True)
    try:
        _execute(order, reporter)
        reporter.say("done", share=1.0)
    except Interrupted:
        reporter.say("stopped")
    except FedOptimaError as error:
        reporter.say("failed", error=str(error))
    except Exception as error:
        order.crash_report.write_text(traceback.format_exc())
        text = f"{type(error).__name__}: {error} (see {order.crash_report.name})"
        reporter.say("failed", error=text)


def _execute(order: Order, reporter: _Reporter) -> None:
    from fedoptima.experiments.given import Given
    from fedoptima.experiments.simulation import resume, start

    hooks: dict[str, Any] = {
        "checkpoint_every": order.checkpoint_every,
        "observer": reporter.training,
        "progress": reporter.reading,
        "interrupted": reporter.interrupted,
    }
    if RunFiles(order.directory).begun:
        resume(order.directory, allow_modules=order.code.modules or (), **hooks)
    else:
        given = Given(code=order.code)
        start(order.recipe, given, out=order.directory, dry=order.dry, **hooks)


class _Reporter:
    """The run's end of the pipe."""

    def __init__(self, order: Order, connection: Connection) -> None:
        self._stop = order.recipe.stop
        self._state = RunState.of(order)
        self._connection = connection
        self._polled = self._reported = 0.0
        self._stopped = False

    def interrupted(self) -> bool:
        """Asked after every event: the clock costs little, the pipe does not."""
        now = time.monotonic()
        if now - self._polled >= _POLL_INTERVAL:
            self._polled = now
            self._stopped = self._stopped or self._connection.poll()
        return self._stopped

    def reading(self, what: str, done: int, total: int) -> None:
        if self.interrupted():
            raise Interrupted(f"stopped while reading {what}")
        if self._is_time():
            self.say("reading", share=done / total if total else None)

    def training(self, watch: SimulationWatch) -> None:
        simulation = watch.simulation
        if not self._is_time() and simulation.outcome is None:
            return
        progress = simulation.server.machine.progress
        measured = [p.accuracy for p in watch.course.points if p.accuracy is not None]
        self.say(
            "training",
            share=progress.share(simulation.now) if not self._stop.only_accuracy else None,
            seconds=max(0.0, simulation.now - watch.course.began),
            epochs=progress.epochs,
            accuracy=measured[-1] if measured else None,
        )

    def say(self, phase: Phase, **figures: float | str | None) -> None:
        self._state = replace(self._state, phase=phase, **figures)  # type: ignore[arg-type]
        with suppress(OSError):  # the parent has ended: `interrupted` will find out
            self._connection.send(self._state)

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._reported < _REPORT:
            return False
        self._reported = now
        return True
