"""A quantity over time in bounded space: its value now, its peak, its mean, and a coarse course.

The course is a row of equally wide bins, each with the mean over its time. When the row is full,
neighbours are joined and the width doubles: so the row never grows, and nothing has to be known
about how long the run will take.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

MOST_BINS = 200  # even: a full row is folded in pairs
_FIRST_WIDTH = 2.0**-10  # seconds; a power of two, so that bins end where they should


@dataclass(frozen=True, slots=True)
class Level:
    last: float  # the value at the end
    peak: float
    mean: float  # weighted by time
    bin_seconds: float
    bins: tuple[float, ...]  # the mean over each bin, from the beginning; the last may be cut off


class LevelMeter:
    """Begins with `begin`; `set` it whenever the value changes; ask it at any time."""

    def __init__(self) -> None:
        self.value = 0
        self.peak = 0
        self._began = self._since = 0.0
        self._width = _FIRST_WIDTH
        self._full: list[float] = []  # value x seconds of the bins that are over
        self._open = 0.0  # and of the one that is not

    def begin(self, now: float) -> None:
        self._began = self._since = now

    def set(self, value: int, now: float) -> None:
        if now > self._since:
            self._flow(now)
        self.value = value
        if value > self.peak:
            self.peak = value

    def _flow(self, now: float) -> None:
        """Time passes at the present value."""
        while True:
            end = self._began + (len(self._full) + 1) * self._width
            if now < end:
                break
            self._full.append(self._open + self.value * (end - self._since))
            self._open = 0.0
            self._since = end
            if len(self._full) == MOST_BINS:
                pairs = zip(self._full[::2], self._full[1::2], strict=True)
                self._full = [first + second for first, second in pairs]
                self._width *= 2
        self._open += self.value * (now - self._since)
        self._since = now

    def level(self, now: float) -> Level:
        """Up to ``now``. Asking changes nothing: time passes for a copy only."""
        end = copy(self)
        end._full = list(self._full)
        end._flow(now)
        seconds = now - self._began
        mean = (sum(end._full) + end._open) / seconds if seconds > 0 else self.value
        bins = [area / end._width for area in end._full]
        begun = now - (self._began + len(bins) * end._width)  # rounded as in `_flow`
        if begun > 0:
            bins.append(end._open / begun)
        return Level(self.value, self.peak, mean, end._width, tuple(bins))
