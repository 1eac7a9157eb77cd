"""A run's records in the order of time, while its files are still being written.

Each node of a real run writes a file of its own, and a device's arrives about a second late. So a
record is held back for a moment, and while old files are being read no file runs ahead of another.
A record that comes later still (its device was away) is counted as if it were new, and `late` says
so: once the run is over, read it again from the start, and every record has its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from heapq import heapify, heappop, heapreplace
from pathlib import Path

from fedoptima.trace.record import Record
from fedoptima.trace.run_folder import RunFiles
from fedoptima.trace.tail import FileTail

PATIENCE = 3.0  # seconds of a real run: devices hand their records over about every second
_AHEAD = 2_000  # records kept of a file while another is read


class _Source:
    def __init__(self, path: Path) -> None:
        self.tail = FileTail(path)
        self.waiting: deque[Record] = deque()
        self.at_end = False

    def fill(self) -> list[Record]:
        """Read on, until the end or enough is waiting."""
        found: list[Record] = []
        while len(self.waiting) + len(found) < _AHEAD:
            records = self.tail.read()
            self.at_end = not records
            if self.at_end:
                break
            found += records
        self.waiting += found
        return found


class Follower:
    """Raises `CutBack` where the run was resumed from an earlier point: begin a new one then."""

    def __init__(self, run: Path) -> None:
        self.newest = 0.0  # the time of the latest record read
        self.late = 0  # records that missed their place
        self._files = RunFiles(run)
        self._sources: dict[str, _Source] = {}
        self._released = 0.0

    @property
    def behind(self) -> bool:
        """More can be read at once."""
        return any(not source.at_end for source in self._sources.values()) or not self._sources

    def read(self) -> list[Record]:
        """What has come in, as it came: for accounts that do not mind the order."""
        self._look_for_files()
        found = [record for source in self._sources.values() for record in source.fill()]
        self.newest = max(self.newest, *(record.at for record in found), 0.0)
        return found

    def ordered(self, *, settled: bool) -> Iterator[Record]:
        """What has its place now. ``settled``: nothing can come late any more."""
        # A simulation writes a single file, and there is no such folder.
        hold_back = not settled and self._files.devices.is_dir()
        until = self.newest - PATIENCE if hold_back else self.newest
        # At equal times by name, the server's first, as `read_trace` has it.
        heads = [(s.waiting[0].at, name) for name, s in self._sources.items() if s.waiting]
        heapify(heads)
        while heads and heads[0][0] <= until:
            at, name = heads[0]
            source = self._sources[name]
            record = source.waiting.popleft()
            if at < self._released and not settled:
                self.late += 1
                record = replace(record, at=self._released)
            self._released = record.at
            yield record
            if source.waiting:
                heapreplace(heads, (source.waiting[0].at, name))
            elif source.at_end:
                heappop(heads)
            else:  # read on first: what it holds next may come before what the others have
                return

    def _look_for_files(self) -> None:
        if "" not in self._sources:  # the server's: before any name
            self._sources[""] = _Source(self._files.trace)
        for path in self._files.device_traces():
            if path.name not in self._sources:
                self._sources[path.name] = _Source(path)
