"""Reads a run's files on, a moment at a time, and says what is known then."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fedoptima.analysis.timeline import Timeline
from fedoptima.core.errors import ConfigError
from fedoptima.core.text import printable
from fedoptima.core.types import NodeId
from fedoptima.dashboard import lanes
from fedoptima.dashboard.accounts import RunAccounts
from fedoptima.dashboard.folder import SILENT, RunFolder, Runs
from fedoptima.dashboard.ordered_tail import OrderedTail
from fedoptima.dashboard.state import Reading, sections
from fedoptima.trace.description import Mode
from fedoptima.trace.run_folder import device_of
from fedoptima.trace.tail import CutBack, DamagedFile

_AT_A_TIME = 0.5  # seconds of reading between two looks, where there is much to read;
_MOST_AT_A_TIME = 10.0  # with very many devices a look takes long itself, and reading goes first
_SLOW, _RARELY = 0.1, 10  # seconds to draw a timeline; then it is drawn a tenth of the time
_DAMAGE = (ConfigError, OSError, ValueError, KeyError, TypeError)  # what a bad file leads to


@dataclass(frozen=True)
class Snapshot:
    sections: dict[str, object]
    behind: bool  # there is more to be read
    began: float  # the training, on the trace's clock
    timelines: dict[int, Timeline]  # by span


@dataclass(frozen=True)
class _Drawn:
    timeline: Timeline
    at: float  # on the clock on the wall
    took: float  # seconds; 0: hardly any


class RunReader:
    """For one thread at a time."""

    def __init__(self, runs: Runs, run: RunFolder) -> None:
        self._runs, self._run = runs, run
        self._suspects: set[Path] = set()  # devices' files that could not be read once
        self._left_out: dict[Path, str] = {}  # and those that could not be read twice, and why
        self._begin()
        self._settled = False  # read to the end when it could not grow any more
        self._doubted: float | None = None  # reading restarted because of the files as of then
        self._error = ""
        self._looked: tuple[float, int] | None = None
        self._reading = _AT_A_TIME  # seconds until the next look
        self._final: Snapshot | None = None  # nothing can change any more
        self._drawn: dict[int, _Drawn] = {}  # by span

    def _begin(self) -> None:
        self._tail = OrderedTail(self._run.path, without=self._left_out)
        self._known = RunAccounts()

    @property
    def behind(self) -> bool:
        return self._tail.behind and not self._error

    def look(self, spans: set[int]) -> Snapshot:
        """What is known after a moment of reading."""
        before = self._known.records
        if not self._advance():
            self._advance()  # from the start, and at once: else the page would be empty for a while
        known, final = self._known, self._final
        if final and known.records == before and spans <= set(final.timelines):
            return final
        description, kept = self._runs.read(self._run)
        reading = Reading(self.behind, self._pace(), self._error)
        started = time.monotonic()
        parts = sections(self._run, description, kept, known, reading)
        took = time.monotonic() - started
        self._reading = min(_MOST_AT_A_TIME, max(_AT_A_TIME, 3 * took))
        snapshot = Snapshot(
            parts,
            reading.behind,
            known.accounts.course.began,
            {span: self._timeline(span) for span in spans},
        )
        self._final = snapshot if self._settled and not reading.behind else None
        return snapshot

    def _timeline(self, span: int) -> Timeline:
        """Of hundreds of devices it takes a while: then it is not drawn at every look."""
        now = time.monotonic()
        drawn = self._drawn.get(span)
        if drawn is not None and not self._settled and now < drawn.at + _RARELY * drawn.took:
            return drawn.timeline
        timeline = lanes.look(self._known.timeline, span)
        took = time.monotonic() - now
        self._drawn[span] = _Drawn(timeline, now, took if took > _SLOW else 0.0)
        return timeline

    def _advance(self) -> bool:
        """False: what was read is void, and reading restarts."""
        if self._error and self._run.changed() == self._doubted:
            return True
        try:
            self._error = ""
            return self._read()
        except CutBack:
            self._begin()
            return False
        except _DAMAGE as problem:
            return self._doubt(problem)

    def _doubt(self, problem: Exception) -> bool:
        """A file cut back and grown again between two looks reads like a damaged one."""
        if isinstance(problem, DamagedFile) and problem.path != self._run.files.trace:
            if problem.path in self._suspects:
                self._left_out[problem.path] = str(problem)
            self._suspects.add(problem.path)
            self._begin()
            return False
        changed = self._run.changed()
        if self._doubted == changed:
            self._error = printable(str(problem))
            return True
        self._doubted = changed
        self._begin()
        return False

    def _read(self) -> bool:
        over = self._run.files.over  # asked before reading: what is read then is all there is
        settled = over or self._simulated() or self._run.silent() > SILENT
        deadline = time.monotonic() + self._reading
        while True:
            for record in self._tail.read():
                self._known.see(record)
            self._name_what_is_missing()
            for record in self._tail.ordered(settled=settled):
                self._known.count(record)
            if not self._tail.behind or time.monotonic() > deadline:
                break
        if not self._tail.behind:
            self._suspects.clear()
        if over and not self._tail.behind and not self._settled:
            self._settled = True
            if self._tail.late:  # now every record can have its place
                self._begin()
                return False
        return True

    def _name_what_is_missing(self) -> None:
        missing = {NodeId(device_of(path)): text for path, text in self._left_out.items()}
        self._known.events.left_out(missing | self._tail.skipped, self._tail.newest)

    def _simulated(self) -> bool:
        description, _ = self._runs.read(self._run)
        return description is not None and description.mode is Mode.SIMULATED

    def _pace(self) -> float:
        now, records = time.monotonic(), self._known.records
        before, self._looked = self._looked, (now, records)
        if before is None or records < before[1]:
            return 0.0
        return (records - before[1]) / max(1e-3, now - before[0])
