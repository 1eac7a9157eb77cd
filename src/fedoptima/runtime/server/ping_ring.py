"""Who is pinged when: everyone once a period, evenly spread, however many came at the same time."""

from __future__ import annotations

from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class PingRing(Generic[T]):
    def __init__(self, period: float) -> None:
        """``period``: seconds between two pings of the same one."""
        self._period = period
        self._ring: dict[T, None] = {}  # in the order of their turns
        self._owed = 0.0  # turns, the part of one that has come so far among them

    def add(self, one: T) -> None:
        self._ring[one] = None

    def discard(self, one: T) -> None:
        self._ring.pop(one, None)

    def due(self, seconds: float) -> list[T]:
        """Whose turn has come, now that so many seconds have passed; nobody twice."""
        self._owed = min(self._owed + len(self._ring) * seconds / self._period, len(self._ring))
        turns = list(islice(self._ring, int(self._owed)))
        self._owed -= len(turns)
        for one in turns:
            del self._ring[one]
            self._ring[one] = None
        return turns
