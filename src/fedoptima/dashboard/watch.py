"""One background task per run that is watched, shared by all its viewers.

It reads in a thread, a moment at a time, so a long trace delays no other request; and it ends when
there has been no viewer for a while. Viewers must not cost much: the longer a look takes, the rarer
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

from fedoptima.dashboard.folder import RunFolder, Runs
from fedoptima.dashboard.reader import RunReader, Snapshot

MOST_WATCHES = 16


@dataclass(frozen=True)
class Cadence:
    every: float = 1.0  # seconds between two looks
    rarest: float = 10.0
    share: float = 0.2  # of a core at most, where nothing is to be caught up with
    linger: float = 60.0  # seconds after the last viewer

    def pause(self, took: float) -> float:
        return min(self.rarest, max(self.every, took / self.share))


class Watch:
    def __init__(self, reader: RunReader, cadence: Cadence) -> None:
        self._reader = reader
        self._cadence = cadence
        self._changed = asyncio.Condition()
        self._number = 0
        self.latest: Snapshot | None = None
        self._spans: Counter[int] = Counter()
        self._last_used = time.monotonic()
        self._wanted = asyncio.Event()  # a viewer has come, and waits
        self.over = False  # it has ended: take a new one
        self._task = asyncio.create_task(self._run())

    @property
    def has_viewers(self) -> bool:
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

    async def _run(self) -> None:
        try:
            while self.has_viewers or time.monotonic() - self._last_used < self._cadence.linger:
                began = time.monotonic()
                self._wanted.clear()
                spans = set(+self._spans)
                self.latest = await asyncio.to_thread(self._reader.look, spans)
                await self._notify()
                if not self._reader.behind:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._cadence.pause(time.monotonic() - began)):
                            await self._wanted.wait()
        finally:
            self.over = True
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._number += 1
            self._changed.notify_all()

    def stop(self) -> None:
        self._task.cancel()

    async def ended(self) -> None:
        """There was no viewer for a while, or it was stopped."""
        await asyncio.wait([self._task])


class Watches:
    """Of all runs that are watched, or were a moment ago."""

    def __init__(self, runs: Runs, cadence: Cadence) -> None:
        self._runs, self._cadence = runs, cadence
        self._of: dict[Path, Watch] = {}

    def of(self, run: RunFolder) -> Watch | None:
        """None: too many runs are watched already."""
        self._of = {path: watch for path, watch in self._of.items() if not watch.over}
        watch = self._of.get(run.path)
        if watch is None:
            if len(self._of) >= MOST_WATCHES and not self._make_room():
                return None
            watch = self._of[run.path] = Watch(RunReader(self._runs, run), self._cadence)
        watch.touch()
        return watch

    def _make_room(self) -> bool:
        for path, watch in self._of.items():
            if not watch.has_viewers:
                self._of.pop(path).stop()
                return True
        return False

    def close(self) -> None:
        for watch in self._of.values():
            watch.stop()
