"""Accounts of a real run while it goes on, for onlookers.

How the devices are doing is told at once. Busy and idle time need every node's records in the order
of time, and devices' records come late: all wait a moment to be sorted. What comes later still (a
device that was away for a while) is counted as if it were new; the figures of a finished run are
made from its files, where every record has its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.fleet import FleetAccount
from fedoptima.trace.record import Record

_PATIENCE = 3.0  # seconds: devices hand their records over about every second


class LiveAccounts:
    def __init__(self) -> None:
        self.fleet = FleetAccount()  # now
        self.accounts = Accounts()  # a moment ago
        self._waiting: list[tuple[float, int, Record]] = []
        self._count = 0
        self._last = 0.0

    def catch_up(self, records: Iterable[Record]) -> None:
        """What happened before the onlooker came: a whole trace, in the order of time."""
        for record in records:
            self.fleet.observe(record)
            self._count_in(record)

    def observe(self, record: Record) -> None:
        self.fleet.observe(record)
        # Without its tensors, which would be kept from being freed for seconds.
        self._await_turn(Record.from_line(record.to_line()))

    def observe_lines(self, lines: Sequence[str]) -> None:
        """A device's own records."""
        for line in lines:
            record = Record.from_line(line)
            self.fleet.observe(record)
            self._await_turn(record)

    def advance(self, now: float) -> None:
        """Count what happened until a moment ago."""
        while self._waiting and self._waiting[0][0] <= now - _PATIENCE:
            self._count_in(heappop(self._waiting)[2])

    def _await_turn(self, record: Record) -> None:
        self._count += 1  # at equal times: first come, first counted
        heappush(self._waiting, (record.at, self._count, record))

    def _count_in(self, record: Record) -> None:
        self._last = max(self._last, record.at)
        self.accounts.observe(replace(record, at=self._last))
