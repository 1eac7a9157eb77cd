"""The clock of a run: seconds since it began. It stands still while the server is down."""

from __future__ import annotations

import time


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


class OffsetClock:
    """Another node's clock in terms of ours, from pings: of all answers the quickest is right."""

    def __init__(self) -> None:
        self._quickest = float("inf")
        self.offset: float | None = None  # what our clock shows more than theirs, once known

    def answered(self, sent: float, theirs: float, received: float) -> None:
        """``sent`` and ``received`` on our clock; ``theirs`` is taken to be half-way between."""
        delay = received - sent
        if delay <= self._quickest:
            self._quickest = delay
            self.offset = (sent + received) / 2 - theirs

    @property
    def known(self) -> bool:
        return self.offset is not None

    def ours(self, theirs: float) -> float:
        if self.offset is None:
            raise ValueError("the other clock has not been read yet")
        return theirs + self.offset
