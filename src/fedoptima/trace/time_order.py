"""Records of several sources in order of time, although some of them come late.

Each node of a real run keeps its own records, and a device sends them about once a second.
So they are held back for a moment. A record that comes even later (its device was away) is
released as if it were new.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from fedoptima.trace.record import Record

PATIENCE = 3.0  # seconds of a real run


class TimeOrder:
    def __init__(self) -> None:
        self.late = 0  # records that came too late for their place
        self.released = 0.0  # the time of the last one
        self._waiting: defaultdict[str, deque[Record]] = defaultdict(deque)

    def add(self, source: str, records: Sequence[Record]) -> None:
        """Each source's own are in order."""
        self._waiting[source].extend(records)

    def all_waiting(self) -> Iterator[Record]:
        """Each source's in order."""
        for records in self._waiting.values():
            yield from records

    def waiting(self, source: str) -> int:
        return len(self._waiting[source])

    def release(
        self, until: float, *, unread: Container[str] = (), settled: bool = False
    ) -> Iterator[Record]:
        """Records whose place is certain; at equal times by source name, as in `read_trace`.

        ``unread``: sources that have more to add; what they add next may come before what the
        others have. ``settled``: nothing can come late any more.
        """
        heads = [(records[0].at, source) for source, records in self._waiting.items() if records]
        heapify(heads)
        while heads and heads[0][0] <= until:
            at, source = heads[0]
            records = self._waiting[source]
            record = records.popleft()
            if at < self.released and not settled:
                self.late += 1
                record = replace(record, at=self.released)
            self.released = record.at
            yield record
            if records:
                heapreplace(heads, (records[0].at, source))
            elif source in unread:
                return
            else:
                heappop(heads)
