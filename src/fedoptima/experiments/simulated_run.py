"""Runs an experiment on the virtual clock, from the start or from a checkpoint."""

from __future__ import annotations

import gc
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.curve import CourseAccount
from fedoptima.analysis.idle_time import UsageAccount
from fedoptima.analysis.saved_accounts import Unfit
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import (
    ConfigError,
    FedOptimaError,
    RunFailed,
    Stalled,
    TrainingDiverged,
    run_failed,
)
from fedoptima.core.progress import Progress
from fedoptima.experiments.assembly import Simulated
from fedoptima.experiments.metrics_file import MetricsFile
from fedoptima.experiments.result import Result, build_result
from fedoptima.experiments.run_directory import PAUSE, STOP, STOPPED, RunDirectory
from fedoptima.sim.driver import Simulation
from fedoptima.sim.extension import end, extend
from fedoptima.trace.description import RunDescription
from fedoptima.trace.record import Record
from fedoptima.trace.writer import PatientWriter, read_records

_log = logging.getLogger(__name__)

_WORKERS_END = 5.0  # seconds
_MOST_CHECKPOINTING = 0.1  # of the time: the state of 100,000 devices takes long to write


@dataclass(frozen=True)
class SimulationWatch:
    """What an observer sees while a run is in progress."""

    description: RunDescription
    simulation: Simulation
    accounts: Accounts

    @property
    def now(self) -> float:
        return self.simulation.now

    @property
    def events(self) -> int:
        return self.simulation.events

    @property
    def progress(self) -> Progress:
        return self.simulation.server.machine.progress

    @property
    def course(self) -> CourseAccount:
        return self.accounts.course

    @property
    def usage(self) -> UsageAccount:
        return self.accounts.usage


SimulationObserver = Callable[
    [SimulationWatch], None
]  # called about ten times a second, and once at the end


class Interrupted(FedOptimaError):
    """The user stopped the run before its end. A run with a folder can be resumed."""


def run_experiment(
    experiment: Simulated,
    *,
    directory: RunDirectory | None = None,
    dry: bool = False,
    resume: bool = False,
    checkpoint_every: float = 60.0,
    observer: SimulationObserver | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    warn: bool = True,
) -> Result:
    """``checkpoint_every``: wall-clock seconds; only with a directory.

    ``interrupted`` is called between events: once it returns True, a last checkpoint is saved
    and `Interrupted` is raised. ``warn``: log what the result warns of.
    """
    if dry and experiment.recipe.stop.only_accuracy:
        raise ConfigError(
            "a dry run has no accuracy, so targets and patience cannot stop it; "
            "add stop.epochs, stop.rounds or stop.hours (for example --set stop.epochs=10)"
        )
    with _taken(directory), _uncollected() if dry else _deterministic(experiment.recipe):
        run = _Run(experiment, directory, dry, warn)
        try:
            return run.run(resume, checkpoint_every, observer, interrupted)
        finally:
            run.close()


def _taken(directory: RunDirectory | None) -> AbstractContextManager[None]:
    if directory is None or directory.is_ours:  # a comparison locks the folders of its runs
        return nullcontext()
    end = time.monotonic() + _WORKERS_END  # those of a run that was killed may still be ending
    return directory.taken(lambda: time.monotonic() < end)


def _deterministic(recipe: Recipe) -> AbstractContextManager[None]:
    from fedoptima.engine.determinism import deterministic  # takes torch, as checkpoints do below

    return deterministic(recipe.threads, recipe.training.precision)


@contextmanager
def _uncollected() -> Iterator[None]:
    """The cores' objects form no cycles, but the collector would visit those of all devices again
    and again: a quarter of the time with 20,000. What an observer leaves is collected after it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Run:
    def __init__(
        self, experiment: Simulated, directory: RunDirectory | None, dry: bool, warn: bool
    ) -> None:
        self._experiment = experiment
        self._directory = directory
        self._dry = dry
        self._warn = warn
        self._unsaved = False  # the disk is full
        self._accounts = Accounts()
        course = self._accounts.course
        self._metrics = MetricsFile(directory.metrics, course) if directory else None
        self._assembly = experiment.assemble([self._record], dry=dry)
        self._description = directory.description if directory else experiment.describe(dry=dry)
        self._watch = SimulationWatch(self._description, self._assembly.simulation, self._accounts)

    def run(
        self,
        resume: bool,
        checkpoint_every: float,
        observer: SimulationObserver | None,
        interrupted: Callable[[], bool],
    ) -> Result:
        simulation = self._assembly.simulation
        checkpoint = self._newest_checkpoint() if resume else None
        if checkpoint is not None:
            self._restore(checkpoint)
        else:
            path = self._directory.trace if self._directory else None
            self._trace = PatientWriter(path, self._description.to_plain())
        if self._metrics is not None:
            self._metrics.start()
        clock = _Clock(checkpoint_every if self._directory else None)
        try:
            rule = self._experiment.recipe.stop
            if simulation.server.machine.progress.rule != rule:
                extend(simulation, rule)
            while simulation.outcome is None:
                simulation.run(pause=lambda: interrupted() or clock.due())
                wish = self._directory.wish() if self._directory else None
                if wish == STOP and simulation.outcome is None:
                    end(simulation, STOPPED)
                stop = simulation.outcome is None and (interrupted() or wish == PAUSE)
                if stop or (clock.checkpoint_due and simulation.outcome is None):
                    began = time.monotonic()
                    self._save_checkpoint()
                    clock.saved(took=time.monotonic() - began)
                self._trace.keep_readable()
                if observer is not None:
                    observer(self._watch)
                if not gc.isenabled():
                    gc.collect(0)
                if stop:
                    when = f"stopped at {simulation.now:.1f} s of the run"
                    if self._directory is not None:
                        self._directory.write_stopped(when)
                    raise Interrupted(when)
            if self._directory is not None:
                shutil.rmtree(self._directory.last_state, ignore_errors=True)
                if not (self._dry or simulation.outcome.failed):
                    self._save_checkpoint(last=True)
        except Stalled as error:
            explained = self._explain(str(error))
            self._write_failure(explained)
            raise Stalled(explained) from error
        except (Interrupted, ConfigError):
            raise
        except Exception as error:
            self._write_failure(f"{type(error).__name__}: {error}")
            raise
        finally:
            with self._written("trace"):
                self._trace.close()  # also when the run fails: the trace says what led to it
        if simulation.outcome.failed:
            reason, failure = simulation.outcome.reason, simulation.failure
            if not isinstance(failure, ConfigError):  # for what was given no time is to blame
                reason = self._explain(reason)
            self._write_failure(reason)
            raise run_failed(reason, failure) from failure
        return self._finish(simulation.outcome.reason)

    def _write_failure(self, reason: str) -> None:
        if self._directory is not None:
            with suppress(OSError):  # what is wrong with the disk is not why it failed
                self._directory.write_failure(reason)

    def close(self) -> None:
        self._assembly.executor.close()

    def _record(self, record: Record) -> None:
        self._trace.write(record)
        self._accounts.observe(record)
        if self._metrics is not None:
            with suppress(OSError):  # a full disk; at the end the whole file is written
                self._metrics.update()

    # ---- checkpoints -------------------------------------------------------------------------

    def _newest_checkpoint(self) -> Path | None:
        from fedoptima.engine.checkpoint import newest_checkpoint

        return newest_checkpoint(self._directory.saved) if self._directory else None

    def _save_checkpoint(self, *, last: bool = False) -> None:
        """``last``: at the end, for a run that is extended later."""
        from fedoptima.sim.checkpoint import save_checkpoint

        if self._directory is not None:
            folder = self._directory.last_state if last else self._directory.checkpoints
            try:
                save_checkpoint(
                    folder,
                    self._assembly.simulation,
                    self._assembly.engines,
                    self._trace.mark(),
                    self._accounts.save(),
                    self._directory.config_text,
                )
                self._unsaved = False
            except (TrainingDiverged, OSError) as error:
                if not self._unsaved:
                    _log.warning("no checkpoint is written: %s; the one before stays", error)
                self._unsaved = isinstance(error, OSError)  # a full disk: said once

    def _restore(self, checkpoint: Path) -> None:
        from fedoptima.sim.checkpoint import load_checkpoint

        assert self._directory is not None
        mark, accounts = load_checkpoint(
            checkpoint,
            self._assembly.simulation,
            self._assembly.engines,
            self._experiment.compute,
            trace := self._directory.trace,
        )
        try:
            self._trace = PatientWriter.resume(trace, mark)
        except OSError as error:
            raise ConfigError(
                f"{trace}: cannot be read ({error.strerror}); start a new run"
            ) from error
        try:
            self._accounts.restore(accounts)
        except Unfit:
            for _, record in read_records(trace):
                self._accounts.observe(record)

    # ---- the end -----------------------------------------------------------------------------

    def _explain(self, reason: str) -> str:
        where = f"; the trace is in {self._directory.trace}" if self._directory else ""
        return f"{reason} (at {self._assembly.simulation.now:.1f} s of the run{where})"

    def _finish(self, reason: str) -> Result:
        result = build_result(
            self._experiment,
            self._assembly.server_engine,
            self._trace.digest,
            reason=reason,
            rounds=self._assembly.simulation.server.machine.progress.rounds,
            summary=self._accounts.summary(),
            directory=self._directory.path if self._directory else None,
            warn=self._warn,
        )
        if self._directory is not None:
            with self._written("result"):
                self._directory.write_result(result)
        return result

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """All is done, and a full disk is the user's: a simulation can be repeated, and ends."""
        try:
            yield
        except OSError as error:
            path = self._directory.path if self._directory else ""
            raise RunFailed(
                f"{path}: the {what} cannot be written ({error.strerror}); make room, and resume "
                f"it with --resume {path}"
            ) from error


class _Clock:
    """Decides when to pause the simulation for a checkpoint or the observer."""

    _OBSERVER_INTERVAL = 0.1  # seconds between two calls of the observer

    def __init__(self, checkpoint_every: float | None) -> None:
        self._every = self._pause = checkpoint_every
        self._last_checkpoint = self._last_observed = time.monotonic()
        self.checkpoint_due = False

    def due(self) -> bool:
        # The clock is read after every event: that is cheap next to a dry event, and one event
        # of a large model may take seconds.
        now = time.monotonic()
        if self._pause is not None and now - self._last_checkpoint >= self._pause:
            self.checkpoint_due = True
            return True
        if now - self._last_observed >= self._OBSERVER_INTERVAL:
            self._last_observed = now
            return True
        return False

    def saved(self, *, took: float) -> None:
        self.checkpoint_due = False
        self._last_checkpoint = time.monotonic()
        if self._every:  # not if there is to be one after every event
            self._pause = max(self._every, took * (1 / _MOST_CHECKPOINTING - 1))
