"""Accounts of a real run while it goes on. Devices' records come late, so all are sorted first.

What comes later than that (a device that was away for a while) is counted as if it were new; the
figures of a finished run are made from its files, where every record has its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

from fedoptima.report.accounts import Accounts
from fedoptima.trace.record import Record

_PATIENCE = 3.0  # seconds: devices hand their records over about every second


class LiveAccounts:
    def __init__(self) -> None:
        self.accounts = Accounts()
        self._waiting: list[tuple[float, int, Record]] = []
        self._count = 0
        self._last = 0.0

    def observe(self, record: Record) -> None:
        self._count += 1
        heappush(self._waiting, (record.at, self._count, record))

    def observe_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.observe(Record.from_line(line))

    def advance(self, now: float) -> None:
        """Count what happened until a moment ago."""
        while self._waiting and self._waiting[0][0] <= now - _PATIENCE:
            _, _, record = heappop(self._waiting)
            self._last = max(self._last, record.at)
            self.accounts.observe(replace(record, at=self._last))
