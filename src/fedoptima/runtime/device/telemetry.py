"""A device's records on their way to the server's disk. Kept until they are there, also on the
device's own disk.

Records are numbered through all incarnations of the device in a run: the server says how many it
has.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from fedoptima.runtime.device.spool import Spool
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.trace.record import Record

_AT_ONCE = 1 << 20  # characters in a frame
_KEPT = 200_000  # records: hours without a server; the oldest go first


class Telemetry:
    def __init__(self, records: int, run: str = "", spool: Spool | None = None) -> None:
        """``records``: what the server has of this device's earlier incarnations. ``spool``: where
        they have left the rest."""
        self._first = records  # the number of the first line kept
        self._run = run
        self._spool = spool
        self._lines: deque[str] = deque(spool.left_over(run, records) if spool else ())
        self._in_flight = False
        self._moved = False  # the oldest lines were left out
        self._keep()

    def observe(self, record: Record) -> None:
        # An error may quote what is no text, and must get through.
        line = record.to_line().encode(errors="replace").decode()
        self._lines.append(line)
        if self._spool is not None:
            self._spool.add(line)
        if len(self._lines) > _KEPT:  # those that follow move up: the server knows no gaps
            self._lines.popleft()
            self._moved = True

    def connected(self, records: int) -> None:
        """A new connection: what was under way may not have arrived."""
        self._in_flight = False
        if records < self._first:  # its disk has lost some
            self._first, self._moved = records, True
        self._forget(records)

    def acknowledged(self, records: int) -> None:
        self._in_flight = False
        self._forget(records)

    def _forget(self, records: int) -> None:
        before = self._first
        while self._lines and self._first < records:
            self._lines.popleft()
            self._first += 1
        if self._spool is not None and (self._spool.done(self._first - before) or self._moved):
            self._keep()

    def _keep(self) -> None:
        """Write to the disk what the server does not have."""
        self._moved = False
        if self._spool is not None:
            self._spool.begin(self._run, self._first, self._lines)

    def batch(self, *, last: bool = False) -> wire.Frame | None:
        """The next records to send, one frame at a time; ``last``: all that is left, at once."""
        if not self._lines or (self._in_flight and not last):
            return None
        size = count = 0
        for line in self._lines:
            if count and size + len(line) > _AT_ONCE:
                break
            size, count = size + len(line), count + 1
        self._in_flight = True
        lines = list(islice(self._lines, count))
        return wire.Frame(telemetry=wire.Telemetry(first=self._first, lines=lines))
