"""One background task per run that is looked at, shared by all who look.

It reads in a thread, a moment at a time, so a long trace holds up nobody else; and it ends when
nobody has looked for a while. An onlooker must not cost much: the longer a look takes, the rarer
they are.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.dashboard import lanes
from fedoptima.dashboard.accounts import RunAccounts
from fedoptima.dashboard.folder import SILENT, RunFolder, Runs
from fedoptima.dashboard.following import Follower
from fedoptima.dashboard.state import Reading, sections
from fedoptima.report.timeline import Timeline
from fedoptima.trace.tail import CutBack

_EVERY = 1.0  # seconds between two looks
_AT_A_TIME = 0.5  # seconds of reading between two looks, where there is much to read
_RAREST = 10.0  # seconds
_SHARE = 0.2  # of a core at most, where nothing is to be caught up with
LINGER = 60.0  # seconds after the last onlooker
MOST_WATCHES = 16


@dataclass(frozen=True)
class Snapshot:
    sections: dict[str, object]
    behind: bool  # there is more to be read
    began: float  # the training, on the trace's clock
    timelines: dict[int, Timeline]  # by span


class RunReader:
    """Reads a run's files on; always in one thread at a time."""

    def __init__(self, runs: Runs, run: RunFolder) -> None:
        self._runs, self._run = runs, run
        self._begin()
        self._settled = False  # read to the end when it could not grow any more
        self._doubted: float | None = None  # begun anew because of what the files were like then
        self._error = ""
        self._looked: tuple[float, int] | None = None

    def _begin(self) -> None:
        self._follower, self._known = Follower(self._run.path), RunAccounts()
        self._error = ""

    @property
    def behind(self) -> bool:
        return self._follower.behind and not self._error

    def look(self, spans: set[int]) -> Snapshot:
        """What is known after a moment of reading."""
        try:
            if not self._error:
                self._read()
            elif self._run.changed() != self._doubted:
                self._begin()
        except CutBack:
            self._begin()
        except (ConfigError, ValueError, OSError) as problem:
            self._doubt(problem)
        recipe, kept = self._runs.read(self._run)
        known, reading = self._known, Reading(self.behind, self._pace(), self._error)
        return Snapshot(
            sections(self._run, recipe, kept, known, reading),
            reading.behind,
            known.accounts.course.began,
            {span: lanes.look(known.timeline, span) for span in spans},
        )

    def _doubt(self, problem: Exception) -> None:
        """A file cut back and grown again between two looks reads like a damaged one."""
        changed = self._run.changed()
        if self._doubted == changed:
            self._error = str(problem)
        else:
            self._doubted = changed
            self._begin()

    def _read(self) -> None:
        over = self._run.over  # asked before reading: what is read then is all there is
        settled = over or self._run.silent() > SILENT
        deadline = time.monotonic() + _AT_A_TIME
        while time.monotonic() < deadline:
            for record in self._follower.read():
                self._known.see(record)
            for record in self._follower.ordered(settled=settled):
                self._known.count(record)
            if not self._follower.behind:
                break
        if over and not self._follower.behind and not self._settled:
            self._settled = True
            if self._follower.late:  # now every record can have its place
                self._begin()

    def _pace(self) -> float:
        now, records = time.monotonic(), self._known.records
        before, self._looked = self._looked, (now, records)
        if before is None or records < before[1]:
            return 0.0
        return (records - before[1]) / max(1e-3, now - before[0])


class Watch:
    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._changed = asyncio.Condition()
        self._number = 0
        self.latest: Snapshot | None = None
        self._spans: Counter[int] = Counter()
        self._last_used = time.monotonic()
        self._wanted = asyncio.Event()  # somebody has come, and waits
        self._task = asyncio.create_task(self._look_on())

    @property
    def over(self) -> bool:
        return self._task.done()

    @property
    def looked_at(self) -> bool:
        return self._spans.total() > 0

    def touch(self) -> None:
        self._last_used = time.monotonic()

    async def snapshots(self, span: int) -> AsyncGenerator[Snapshot, None]:
        """From now on, with the timeline of ``span``."""
        seen = self._number
        self._spans[span] += 1
        self._wanted.set()
        try:
            while not self.over:
                async with self._changed:
                    while self._number == seen and not self.over:
                        await self._changed.wait()
                seen = self._number
                if self.latest is not None and span in self.latest.timelines:
                    yield self.latest
        finally:
            self._spans[span] -= 1
            self.touch()

    async def _look_on(self) -> None:
        while self.looked_at or time.monotonic() - self._last_used < LINGER:
            began = time.monotonic()
            self._wanted.clear()
            self.latest = await asyncio.to_thread(self._reader.look, set(+self._spans))
            async with self._changed:
                self._number += 1
                self._changed.notify_all()
            if not self._reader.behind:
                took = time.monotonic() - began
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(_RAREST, max(_EVERY, took / _SHARE))):
                        await self._wanted.wait()

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


class Watches:
    """Of all runs that are looked at, or were a moment ago."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._of: dict[Path, Watch] = {}

    def of(self, run: RunFolder) -> Watch | None:
        """None: too many runs are looked at already."""
        self._of = {path: watch for path, watch in self._of.items() if not watch.over}
        watch = self._of.get(run.path)
        if watch is None:
            if len(self._of) >= MOST_WATCHES:
                return None
            watch = self._of[run.path] = Watch(RunReader(self._runs, run))
        watch.touch()
        return watch

    async def close(self) -> None:
        for watch in self._of.values():
            await watch.stop()
