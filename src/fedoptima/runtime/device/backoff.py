"""How long a device waits before it tries its server again: doubling, with jitter.

A connection that has lasted longer than the wait before it was a good one: the next wait is short
again, and none is long, because its server will be back. One that ends at once was none: a server
may send a device away each time, soon after its welcome. Jitter, because devices that have lost
their server together would all come at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

_MOST_DOUBLINGS = 16


class Backoff:
    def __init__(
        self,
        first: float,
        longest: float,
        longest_after_loss: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first = first
        self._longest = self._longest_elsewhere = longest
        self._longest_after_loss = longest_after_loss
        self._clock = clock
        self._jitter = jitter
        self._failures = 0
        self._waited = 0.0
        self._connected: float | None = None  # since when
        self._seen = clock()

    @property
    def offline(self) -> float:
        """Seconds since there was a connection."""
        return self._clock() - self._seen

    def connected(self) -> None:
        self._connected = self._clock()

    def lost(self) -> None:
        """The connection, if there was one, has ended."""
        if self._connected is None:
            return
        self._seen = self._clock()
        good = self._seen - self._connected > self._waited
        self._longest = self._longest_after_loss if good else self._longest_elsewhere
        if good:
            self._failures = 0
        self._connected = None

    def wait(self) -> float:
        """Seconds, from now on."""
        doubled = self._first * 2 ** min(self._failures, _MOST_DOUBLINGS)
        self._failures += 1
        self._waited = min(doubled, self._longest) * self._jitter(0.5, 1.0)
        return self._waited
