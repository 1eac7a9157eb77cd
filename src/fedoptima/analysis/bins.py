"""Seconds of each kind of time in equally wide bins, of every node, in bounded space.

Two ways to make room when the rows are full: `FoldingBins` joins neighbours and doubles the width,
so that the rows hold the whole run; `RecentBins` forgets the older half, and keeps the width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from copy import copy
from typing import Self

from fedoptima.analysis.spans import Kind
from fedoptima.core.types import NodeId

_FIRST_WIDTH = 2.0**-10  # seconds; a power of two, so that bins end where they should
_MOST_STRETCHES = 4096

Row = tuple[NodeId, Kind]
Stretch = tuple[float, float]


class Bins(ABC):
    def __init__(self, count: int, width: float) -> None:
        self.count = count  # in a row; even
        self.width = width
        self.start = 0.0  # of the first bin
        self.rows: dict[Row, array[float]] = {}

    @property
    def end(self) -> float:
        """Of the last bin."""
        return self.start + self.count * self.width

    @abstractmethod
    def make_room(self, end: float) -> None:
        """Let the bins reach at least until ``end``."""

    def copy(self) -> Self:
        """Equal, and independent from now on."""
        twin = copy(self)
        twin.rows = {name: row[:] for name, row in self.rows.items()}
        return twin

    def add(self, name: Row, start: float, end: float) -> None:
        origin, width = self.start, self.width
        if end > origin + self.count * width:
            self.make_room(end)
            origin, width = self.start, self.width
        if start < origin:
            start = origin
        if end <= start:
            return
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = array("d", bytes(8 * self.count))
        first = int((start - origin) / width)
        edge = origin + (first + 1) * width
        if end <= edge:
            row[first] += end - start
            return
        row[first] += edge - start
        last = int((end - origin) / width)
        for place in range(first + 1, last):
            row[place] += width
        rest = end - (origin + last * width)
        if rest > 0:
            row[last] += rest


class FoldingBins(Bins):
    def __init__(self, count: int) -> None:
        super().__init__(count, _FIRST_WIDTH)

    def make_room(self, end: float) -> None:
        while end > self.end:
            self.width *= 2
            for name, row in self.rows.items():
                pairs = zip(row[::2], row[1::2], strict=True)
                folded = array("d", [first + second for first, second in pairs])
                folded.frombytes(bytes(8 * (self.count - len(folded))))
                self.rows[name] = folded


class RecentBins(Bins):
    """The last ``count`` bins at least, and up to twice as many."""

    def __init__(self, count: int, width: float) -> None:
        super().__init__(2 * count, width)

    def make_room(self, end: float) -> None:
        half = self.count // 2
        while end > self.end:
            self.start += half * self.width
            for row in self.rows.values():
                del row[:half]
                row.frombytes(bytes(8 * half))


class Overlaps:
    """Stretches of time that overlap each other, each moment of them counted once.

    They come in the order of their ends. Of very many, the oldest are forgotten.
    """

    def __init__(self) -> None:
        self._counted: dict[Row, list[Stretch]] = {}

    def copy(self) -> Overlaps:
        twin = Overlaps()
        twin._counted = {name: counted[:] for name, counted in self._counted.items()}
        return twin

    def not_counted(self, name: Row, start: float, end: float) -> list[Stretch]:
        counted = self._counted.setdefault(name, [])
        pieces: list[Stretch] = []
        begin = start
        upto = end
        while counted and counted[-1][1] >= start:
            begin, other_end = counted.pop()
            if other_end < upto:
                pieces.append((other_end, upto))
            upto = begin
        if start < upto:
            pieces.append((start, upto))
        counted.append((min(begin, start), end))
        if len(counted) > _MOST_STRETCHES:
            del counted[: _MOST_STRETCHES // 2]
        return pieces
