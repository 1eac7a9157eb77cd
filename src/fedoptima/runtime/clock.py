"""The clock of a run: seconds since it began. It stands still while the server is down."""

from __future__ import annotations

import time
from typing import Final


class RunClock:
    def __init__(self, begin: float = 0.0) -> None:
        self._begin = begin
        self._start = time.monotonic()

    def __call__(self) -> float:
        return self._begin + time.monotonic() - self._start

    @property
    def at_zero(self) -> float:
        """What it shows when time.monotonic(), which all processes share, is 0."""
        return self._begin - self._start


_DRIFT: Final = 1e-4  # seconds a second by which two clocks drift apart; most are ten times better


class OffsetClock:
    """Another node's clock in terms of ours, from pings: of all answers the most certain is right.

    An answer is as uncertain as half the time it took, and more so as it gets older, because clocks
    drift. So the quickest counts for a while, and not for ever.
    """

    def __init__(self) -> None:
        self._uncertainty = float("inf")  # of the answer that counts, when it came
        self._came = 0.0
        self.offset: float | None = None  # what our clock shows more than theirs, once known

    def answered(self, sent: float, theirs: float, received: float) -> None:
        """``sent`` and ``received`` on our clock; ``theirs`` is taken to be half-way between."""
        uncertainty = (received - sent) / 2
        if uncertainty <= self._uncertainty + _DRIFT * (received - self._came):
            self._uncertainty, self._came = uncertainty, received
            self.offset = (sent + received) / 2 - theirs

    @property
    def known(self) -> bool:
        return self.offset is not None

    def ours(self, theirs: float) -> float:
        if self.offset is None:
            raise ValueError("the other clock has not been read yet")
        return theirs + self.offset
