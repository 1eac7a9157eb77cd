"""The parts of a grid where the reference (FedOptima) is not first: as few boxes as cover them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import combinations_with_replacement, product
from operator import and_

from fedoptima.analysis.formatting import counted, percent
from fedoptima.comparison.sensitivity import Grid, Sensitivity

Span = tuple[int, int]  # from and to, places on an axis, both included

_WORDS = (  # a part of an axis, and all of it
    ("devices x {}", "devices of any speed"),
    ("links of {} Mbps", "any links"),
    ("latency {} ms", "any latency"),
    ("server of {} GFLOP/s", "any server"),
)


@dataclass(frozen=True)
class Region:
    """A box of cells in which the same method is first."""

    winner: str
    spans: tuple[Span, ...]  # one for each axis
    cells: int
    reference: str
    behind: tuple[float, float]  # the reference's time over the winner's: least and most

    def words(self, grid: Grid) -> str:
        places = [
            _values(text, whole, axis, span)
            for (text, whole), axis, span in zip(_WORDS, grid.axes, self.spans, strict=True)
        ]
        least, most = self.behind
        times = f"{most:.2f}" if f"{least:.2f}" == f"{most:.2f}" else f"{least:.2f} to {most:.2f}"
        return (
            f"{self.winner} is first with {', '.join(places)} ({counted(self.cells, 'cell')}; "
            f"{self.reference} takes {times} times as long)"
        )


def regions(found: Sensitivity) -> list[Region]:
    """They may overlap; together they are exactly the cells where the reference is not first."""
    boxes = list(_boxes(found.grid))
    number = {cell: place for place, cell in enumerate(found.grid.cells())}
    named = []
    for winner in found.methods:
        cells = {c for c in found.times if winner != found.reference and found.winner(c) == winner}
        own = sum(1 << number[cell] for cell in cells)
        inside = [(mask, spans) for mask, spans in boxes if mask & ~own == 0]
        uncovered = own
        while uncovered:
            mask, spans = max(inside, key=lambda box: (box[0] & uncovered).bit_count())
            uncovered &= ~mask
            behind = [1 / (found.lead(c) or 1.0) for c in cells if mask >> number[c] & 1]
            named.append(
                Region(winner, spans, len(behind), found.reference, (min(behind), max(behind)))
            )
    return sorted(named, key=lambda region: -region.cells)


def summary(found: Sensitivity) -> list[str]:
    """A sentence about the whole grid, then one for each region where the reference is behind."""
    cells = len(found.times)
    first = sum(found.winner(cell) == found.reference for cell in found.times)
    text = f"{found.name}: {found.reference} is first in {first} of {counted(cells, 'cell')}"
    where = regions(found)
    if not where:
        return [f"{text}: there is none in which another method is."]
    return [f"{text} ({percent(first / cells)}).", *(f"{r.words(found.grid)}." for r in where)]


def _boxes(grid: Grid) -> Iterator[tuple[int, tuple[Span, ...]]]:
    """Every box of the grid, as a set of cells (one bit each) and as spans."""
    shape = [len(axis) for axis in grid.axes]
    places = list(product(*map(range, shape)))
    masks: list[list[tuple[int, Span]]] = []
    for axis, size in enumerate(shape):
        spans = combinations_with_replacement(range(size), 2)
        masks.append(
            [
                (sum(1 << n for n, place in enumerate(places) if low <= place[axis] <= high), span)
                for span in spans
                for low, high in [span]
            ]
        )
    for chosen in product(*masks):
        yield reduce(and_, (mask for mask, _ in chosen)), tuple(span for _, span in chosen)


def _values(text: str, whole: str, axis: Sequence[float], span: Span) -> str:
    low, high = span
    if (low, high) == (0, len(axis) - 1):
        return whole
    values = number(axis[low]) if low == high else f"{number(axis[low])} to {number(axis[high])}"
    return text.format(values)


def number(value: float) -> str:
    """1/12 instead of 0.0833."""
    if 0 < value < 1:
        exact = Fraction(value).limit_denominator(100)
        return f"{exact.numerator}/{exact.denominator}"
    return f"{value:g}"
