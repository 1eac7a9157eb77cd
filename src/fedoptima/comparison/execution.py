"""One run of many: what is ordered, how far it has come, and its execution in a worker's process.

Nothing here knows where the worker is. It has a line to whoever ordered the run, on which it sends
its progress and learns that it should stop.
"""

from __future__ import annotations

import shutil
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from fedoptima.analysis.quality import Quality, quality_of
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import FedOptimaError
from fedoptima.experiments.given import Given, named_packages
from fedoptima.experiments.run_directory import RunDirectory, make_folder
from fedoptima.experiments.simulated_run import Interrupted, SimulationWatch
from fedoptima.named_code import AllowedCode

_POLL_INTERVAL = 0.1  # seconds between two looks at the line
_REPORT = 0.25  # seconds between two reports of a run
# Seconds for a lost worker's last process to end. On another machine its lock outlives it by the
# lease of the file system (90 seconds on NFS).
_PATIENCE = 120.0

Phase = Literal["waiting", "starting", "reading", "training", "done", "stopped", "failed"]
_OVER = ("done", "stopped", "failed")


def workers_of(recipe: Recipe) -> int:
    return 1 if recipe.workers == "auto" else recipe.workers


@dataclass(frozen=True)
class Order:
    """A run to start in ``directory``, or to resume if it is there already."""

    recipe: Recipe
    directory: Path
    dry: bool
    checkpoint_every: float
    label: str = ""  # the method and what else sets it apart; empty: the method

    @property
    def workers(self) -> int:
        """Processes for its tensor work. Others use the machine, so it has none unless told to."""
        return workers_of(self.recipe)

    @property
    def executor(self) -> int | Literal["auto"]:
        """What the run is told. On a GPU a number means that no step is recorded as a graph."""
        return self.recipe.workers if self.on_gpu else self.workers

    @property
    def on_gpu(self) -> bool:
        return self.recipe.device.startswith("cuda")

    @property
    def crash_report(self) -> Path:
        """Next to the run's own folder, which must stay unchanged to be resumed."""
        return self.directory.with_name(f"{self.directory.name}.error.txt")


@dataclass(frozen=True)
class RunState:
    """How far one run has come."""

    label: str
    seed: int
    phase: Phase = "waiting"
    share: float | None = None  # of its budget; None: not known, or only accuracy ends it
    seconds: float = 0.0  # on the run's clock
    epochs: float = 0.0
    quality: Quality | None = None  # None: nothing has been measured yet
    error: str | None = None

    @classmethod
    def of(cls, order: Order) -> RunState:
        return cls(order.label or order.recipe.method.name, order.recipe.seed)

    @property
    def over(self) -> bool:
        return self.phase in _OVER


class Line(Protocol):
    """From a worker to whoever ordered its run."""

    def send(self, state: RunState) -> None: ...

    def stopped(self) -> bool:
        """Whether the run should stop; also when nobody is at the other end any more."""


def execute(order: Order, line: Line, given: Given) -> RunState:
    """Execute the order, whatever happens, and return how it ended.

    ``given``: what all orders share besides their recipes.
    """
    reporter = _Reporter(order, line)
    reporter.say("starting")
    order.crash_report.unlink(missing_ok=True)
    try:
        _execute(order, given, reporter)
        return reporter.say("done", share=1.0)
    except Interrupted:
        return reporter.say("stopped")
    except FedOptimaError as error:
        return reporter.say("failed", error=str(error))
    except Exception as error:
        order.crash_report.write_text(traceback.format_exc())
        text = f"{type(error).__name__}: {error} (see {order.crash_report.name})"
        return reporter.say("failed", error=text)


def _execute(order: Order, given: Given, reporter: _Reporter) -> None:
    from fedoptima.experiments.simulation import go_on, start

    hooks: dict[str, Any] = {
        "checkpoint_every": order.checkpoint_every,
        "observer": reporter.training,
        "reading": reporter.reading,
        "interrupted": reporter.interrupted,
    }
    make_folder(order.directory)
    run = RunDirectory(order.directory)
    try:
        # A worker whose parent was killed, or whose machine was lost, may still be ending.
        with run.taken(wait=reporter.waiting):
            if run.begun:
                go_on(run.path, _for_resumed(given, order.recipe), workers=order.executor, **hooks)
            else:
                recipe = order.recipe.model_copy(update={"workers": order.executor})
                start(recipe, given, out=run.path, dry=order.dry, **hooks)
    finally:
        shutil.rmtree(run.last_state, ignore_errors=True)  # a comparison's runs end together
        with suppress(OSError):  # it is not empty, as it should be
            run.path.rmdir()


def _for_resumed(given: Given, recipe: Recipe) -> Given:
    """The recipe is read from the run's folder: of code it may name only what was ordered."""
    if given.code.modules is not None:
        return given
    return replace(given, code=AllowedCode(named_packages(recipe)))


class _Reporter:
    """What the run calls while it goes on."""

    def __init__(self, order: Order, line: Line) -> None:
        self._stop = order.recipe.stop
        self._state = RunState.of(order)
        self._line = line
        self._began = time.monotonic()
        self._polled = self._reported = 0.0
        self._stopped = False

    def interrupted(self) -> bool:
        """Asked after every event: the clock costs little, the line does not."""
        now = time.monotonic()
        if now - self._polled >= _POLL_INTERVAL:
            self._polled = now
            self._stopped = self._stopped or self._line.stopped()
        return self._stopped

    def waiting(self) -> bool:
        """For another process that has the run's folder; False: long enough."""
        if self.interrupted():
            raise Interrupted("stopped before it began")
        return time.monotonic() - self._began < _PATIENCE

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
        self.say(
            "training",
            share=progress.share(simulation.now) if not self._stop.only_accuracy else None,
            seconds=max(0.0, simulation.now - watch.course.began),
            epochs=progress.epochs,
            quality=quality_of(watch.course.points),
        )

    def say(self, phase: Phase, **figures: float | str | Quality | None) -> RunState:
        self._state = replace(self._state, phase=phase, **figures)  # type: ignore[arg-type]
        self._line.send(self._state)
        return self._state

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._reported < _REPORT:
            return False
        self._reported = now
        return True
