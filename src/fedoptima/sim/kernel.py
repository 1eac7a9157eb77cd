"""Virtual time: a heap of (time, order, item), and nothing else.

Items due at the same time come out in the order they were put in: a run is deterministic.
"""

from __future__ import annotations

from heapq import heappop, heappush

from fedoptima.core.errors import InvariantBroken


class EventKernel:
    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, object]] = []
        self._order = 0

    def at(self, time: float, item: object) -> None:
        if time < self.now:
            raise InvariantBroken(f"{item} is due at {time}, but it is already {self.now}")
        self._order += 1
        heappush(self._heap, (time, self._order, item))

    def pop(self) -> object | None:
        """Advance to the next item; None when nothing can happen any more."""
        if not self._heap:
            return None
        self.now, _, item = heappop(self._heap)
        return item

    def holds(self, kind: type) -> bool:
        """Is something of this kind still to come?"""
        return any(isinstance(item, kind) for _, _, item in self._heap)
