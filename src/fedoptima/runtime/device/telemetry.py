"""A device's records on their way to the server's disk. Kept until they are there.

Records are numbered through all incarnations of the device in a run: the server says how many it
has.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.trace.record import Record

_AT_ONCE = 1 << 20  # characters in a frame
_KEPT = 200_000  # records: hours without a server; the oldest go first


class Telemetry:
    def __init__(self, records: int) -> None:
        """``records``: what the server has of this device's earlier incarnations."""
        self._first = records  # the number of the first line kept
        self._lines: deque[str] = deque()
        self._in_flight = False

    def observe(self, record: Record) -> None:
        # An error may quote what is no text, and must get through.
        self._lines.append(record.to_line().encode(errors="replace").decode())
        if len(self._lines) > _KEPT:  # those that follow move up: the server knows no gaps
            self._lines.popleft()

    def connected(self, records: int) -> None:
        """A new connection: what was under way may not have arrived."""
        self._in_flight = False
        self._first = min(self._first, records)  # less than it had: its disk has lost some
        self._forget(records)

    def acknowledged(self, records: int) -> None:
        self._in_flight = False
        self._forget(records)

    def _forget(self, records: int) -> None:
        while self._lines and self._first < records:
            self._lines.popleft()
            self._first += 1

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
