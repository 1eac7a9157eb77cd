"""Works a queue of runs off: what is recorded is never run again, what was stopped is resumed.

DIR/a_image-dry.json ...   finished runs, see `reproduction.records`
DIR/runs/                  the folders of runs that are not recorded yet
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from fedoptima.comparison.execution import Order, RunState
from fedoptima.comparison.many_runs import Execution
from fedoptima.comparison.pool import run_all
from fedoptima.comparison.spec import machine_of
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.describe import versions
from fedoptima.experiments.given import Given
from fedoptima.experiments.run_directory import make_folder
from fedoptima.reproduction.planned import Planned
from fedoptima.reproduction.records import Made, Records, record_of
from fedoptima.reproduction.timed_plan import timed_plan
from fedoptima.trace.run_folder import RunFiles

RUNS = "runs"


@dataclass(frozen=True)
class Session:
    """What the runs of one call have in common."""

    execution: Execution
    command: str
    commit: str = ""  # empty: what git says
    keep: bool = False  # the folders of runs that are recorded

    def made(self, planned: Planned) -> Made:
        return Made(
            command=self.command,
            commit=self.commit or commit(),
            date=datetime.now(UTC).date().isoformat(),
            machine=f"{machine_of(planned.recipe)}{_processor()}",
            versions=", ".join(f"{what} {version}" for what, version in versions().items()),
        )


@dataclass
class Outcome:
    failed: list[str] = field(default_factory=list)  # a line each
    left: int = 0  # runs that are not recorded


def work(queue: Sequence[Planned], records: Records, session: Session) -> Outcome:
    """Runs of one kind share a pool, whose size depends on what a run needs."""
    make_folder(records.folder)
    outcome = Outcome()
    for kind in ("plan", "dry", "training"):
        of_kind = [run for run in queue if run.kind == kind]
        _collect(of_kind, records, session)
        missing = [run for run in of_kind if run.id not in records]
        if kind == "plan":
            for run in missing:
                if not session.execution.interrupted():
                    records.add(timed_plan(run, session.made(run)))
        elif missing and not session.execution.interrupted():
            _work(missing, of_kind, records, session, outcome)
    outcome.left = sum(run.id not in records for run in queue)
    return outcome


def _work(
    missing: Sequence[Planned],
    queue: Sequence[Planned],
    records: Records,
    session: Session,
    outcome: Outcome,
) -> None:
    execution, first = session.execution, missing[0]
    folder = records.folder / RUNS
    make_folder(folder)
    orders = [_order(run, folder, execution.checkpoint_every) for run in missing]
    kept = [
        replace(RunState.of(_order(run, folder, 0.0)), phase="done", share=1.0)
        for run in queue
        if run.id in records
    ]
    clock = _Clock()

    def look(states: Sequence[RunState]) -> None:
        for run, state in zip(missing, states, strict=True):
            clock.see(run.id, state)
            if state.phase == "done" and run.id not in records:
                _record(run, records, session, clock.seconds(run.id))
        execution.observer((*kept, *states))

    states = run_all(
        orders,
        execution.pool(first.recipe, Given(), folder),
        observer=look,
        interrupted=execution.interrupted,
    )
    outcome.failed += [
        f"{state.label} (seed {state.seed}): {state.error}"
        for state in states
        if state.phase == "failed"
    ]


def _order(run: Planned, folder: Path, checkpoint_every: float) -> Order:
    dry = run.kind == "dry"
    return Order(run.recipe, folder / run.folder, dry, checkpoint_every, run.label)


def _collect(queue: Sequence[Planned], records: Records, session: Session) -> None:
    """Runs that ended just before this program was killed."""
    for run in queue:
        folder = records.folder / RUNS / run.folder
        if run.id not in records and RunFiles(folder).over:
            _record(run, records, session, None)


def _record(run: Planned, records: Records, session: Session, wall: float | None) -> None:
    folder = records.folder / RUNS / run.folder
    try:
        summary = json.loads(RunFiles(folder).summary.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: its result cannot be read ({error}); remove it") from error
    records.add(record_of(run, summary, session.made(run), wall))
    if not session.keep:  # after it is recorded: a kill in between repeats nothing
        shutil.rmtree(folder, ignore_errors=True)


class _Clock:
    """How long each run took on the wall."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began: dict[str, float] = {}

    def see(self, run: str, state: RunState) -> None:
        if state.phase != "waiting":
            self._began.setdefault(run, self._now())

    def seconds(self, run: str) -> float:
        return self._now() - self._began[run]


def commit() -> str:
    """Of the checkout that this is called in."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f", {platform.processor()}" if platform.processor() else ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(names, "")
    return f", {name}" if name else ""
