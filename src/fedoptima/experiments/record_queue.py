"""A server's records on their way to trace, accounts and view: many at once, not each by itself.

Whoever looks at one has to have what is there worked off before: nothing else can tell the
difference. Several together take less time than one by one, between other things.
"""

from __future__ import annotations

from typing import Final

from fedoptima.trace.record import Record, RecordObserver

_MOST: Final = 1000  # records that wait


class RecordQueue:
    def __init__(self, *observers: RecordObserver) -> None:
        self.observers = list(observers)
        self._waiting: list[Record] = []

    def add(self, record: Record) -> None:
        """Its tensors are not kept."""
        self._waiting.append(record.without_tensors())
        if len(self._waiting) >= _MOST:
            self.work_off()

    def work_off(self) -> None:
        """Each observer has seen everything when this returns."""
        waiting, self._waiting = self._waiting, []
        for observe in self.observers:
            for record in waiting:
                observe(record)
