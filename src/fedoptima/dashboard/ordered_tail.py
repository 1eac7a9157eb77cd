"""A run's records in the order of time, while its files are still being written.

While old files are being read no file runs ahead of another. Once a run is over of which records
came late, read it again from the start, and every record has its place.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

from fedoptima.core.types import NodeId
from fedoptima.trace.record import Record
from fedoptima.trace.run_folder import RunFiles, device_of
from fedoptima.trace.tail import FileTail
from fedoptima.trace.time_order import PATIENCE, TimeOrder

_AHEAD = 2_000  # records kept of a file while another is read
_SERVER = ""  # the server's file: before any device's name


class OrderedTail:
    """Raises `CutBack` where the run was resumed from an earlier point: begin a new one then."""

    def __init__(self, run: Path, without: Container[Path] = ()) -> None:
        """``without``: devices' files that cannot be read."""
        self.newest = 0.0  # the time of the latest record read
        self._files = RunFiles(run)
        self._without = without
        self._tails: dict[str, FileTail] = {}
        self._unread: set[str] = set()  # files that may hold more
        self._order = TimeOrder()

    @property
    def behind(self) -> bool:
        """More can be read at once."""
        return bool(self._unread) or not self._tails

    @property
    def late(self) -> int:
        """Records that missed their place."""
        return self._order.late

    @property
    def skipped(self) -> dict[NodeId, str]:
        """Devices of which some records cannot be read."""
        return {
            NodeId(device_of(Path(name))): str(tail.skipped)
            for name, tail in self._tails.items()
            if tail.skipped.lines
        }

    def read(self) -> list[Record]:
        """What has come in, as it came: for accounts that do not mind the order."""
        self._look_for_files()
        found = [record for name in self._tails for record in self._fill(name)]
        self.newest = max(self.newest, *(record.at for record in found), 0.0)
        return found

    def ordered(self, *, settled: bool) -> Iterator[Record]:
        """What has its place now.

        ``settled``: nothing can come late any more. It never can in a simulation: it has one file.
        """
        until = self.newest if settled else self.newest - PATIENCE
        return self._order.release(until, unread=self._unread, settled=settled)

    def _fill(self, name: str) -> list[Record]:
        """Read on, until the end or enough is waiting."""
        found: list[Record] = []
        while self._order.waiting(name) + len(found) < _AHEAD:
            records = self._tails[name].read()
            if not records:
                self._unread.discard(name)
                break
            self._unread.add(name)
            found += records
        self._order.add(name, found)
        return found

    def _look_for_files(self) -> None:
        if _SERVER not in self._tails:
            self._tails[_SERVER] = FileTail(self._files.trace)
            self._unread.add(_SERVER)
        for path in self._files.device_traces():
            if path.name not in self._tails and path not in self._without:
                self._tails[path.name] = FileTail(path, NodeId(device_of(path)))
                self._unread.add(path.name)
