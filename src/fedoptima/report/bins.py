"""Seconds of each kind of time in equally wide bins, of every node, in bounded space.

Two ways to make room when the rows are full: `FoldingBins` joins neighbours and doubles the width,
so that the rows hold the whole run; `RecentBins` forgets the older half, and keeps the width.
"""

from __future__ import annotations

from array import array
from copy import copy
from typing import Self

from fedoptima.core.types import NodeId
from fedoptima.report.spans import Kind, Span

_FIRST_WIDTH = 2.0**-10  # seconds; a power of two, so that bins end where they should
_TRANSFERS = (Kind.SEND, Kind.RECEIVE)
_MOST_REMEMBERED = 4096  # stretches of transfers, a row; older ones overlap with nothing new

Key = tuple[NodeId, Kind]


class Bins:
    def __init__(self, count: int, width: float) -> None:
        self.count = count  # in a row; even
        self.width = width
        self.start = 0.0  # of the first bin
        self.rows: dict[Key, array[float]] = {}
        self._covered: dict[Key, list[tuple[float, float]]] = {}

    def begin(self, now: float) -> None:
        self.start = now

    @property
    def limit(self) -> float:
        return self.start + self.count * self.width

    def make_room(self, end: float) -> None:
        raise NotImplementedError

    def copy(self) -> Self:
        """Equal, and independent from now on."""
        twin = copy(self)
        twin.rows = {key: row[:] for key, row in self.rows.items()}
        twin._covered = {key: covered[:] for key, covered in self._covered.items()}
        return twin

    def add(self, span: Span) -> None:
        """Spans of a kind and node come in the order of their ends."""
        start, end = span.start, span.end
        if end > self.limit:
            self.make_room(end)
        if start < self.start:
            start = self.start
        if end <= start:
            return
        key = (span.node, span.kind)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = array("d", bytes(8 * self.count))
        if span.kind in _TRANSFERS:
            for piece in self._uncovered(key, start, end):
                self._fill(row, *piece)
        else:
            self._fill(row, start, end)

    def _fill(self, row: array[float], start: float, end: float) -> None:
        width = self.width
        first = int((start - self.start) / width)
        edge = self.start + (first + 1) * width
        if end <= edge:
            row[first] += end - start
            return
        row[first] += edge - start
        last = int((end - self.start) / width)
        for place in range(first + 1, last):
            row[place] += width
        rest = end - (self.start + last * width)
        if rest > 0:
            row[last] += rest

    def _uncovered(self, key: Key, start: float, end: float) -> list[tuple[float, float]]:
        """What no other transfer of the row has covered yet: several at once count once."""
        covered = self._covered.setdefault(key, [])
        pieces, upto, begin = [], end, start
        while covered and covered[-1][1] >= start:
            other_start, other_end = covered.pop()
            if other_end < upto:
                pieces.append((other_end, upto))
            upto = min(upto, other_start)
            begin = min(start, other_start)
        if start < upto:
            pieces.append((start, upto))
        covered.append((begin, end))
        if len(covered) > _MOST_REMEMBERED:
            del covered[: _MOST_REMEMBERED // 2]
        return pieces


class FoldingBins(Bins):
    def __init__(self, count: int) -> None:
        super().__init__(count, _FIRST_WIDTH)

    def make_room(self, end: float) -> None:
        while end > self.limit:
            self.width *= 2
            for key, row in self.rows.items():
                pairs = zip(row[::2], row[1::2], strict=True)
                folded = array("d", [first + second for first, second in pairs])
                folded.frombytes(bytes(8 * (self.count - len(folded))))
                self.rows[key] = folded


class RecentBins(Bins):
    """The last ``count`` bins at least, and up to twice as many."""

    def __init__(self, count: int, width: float) -> None:
        super().__init__(2 * count, width)

    def make_room(self, end: float) -> None:
        half = self.count // 2
        while end > self.limit:
            if end - self.limit > self.count * self.width:  # nothing of it will be left
                self.start += int((end - self.limit) / self.width) * self.width
                self.rows.clear()
                continue
            self.start += half * self.width
            for row in self.rows.values():
                del row[:half]
                row.frombytes(bytes(8 * half))
