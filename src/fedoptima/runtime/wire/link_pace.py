"""A link slowed to a stated rate, so that a testbed can be run on one machine in real time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fedoptima.core.errors import ConfigError

BURST_SECONDS: Final = 0.05  # sleeping is not exact: what was overslept so far is made up for
CHUNK_SECONDS: Final = 0.1  # an urgent message waits no longer than this for the chunk before it
SMALLEST_CHUNK: Final = 4096


class LinkPace:
    """Bytes leave one after another, each when the link has carried those before it."""

    def __init__(
        self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not 0 < bytes_per_second < float("inf"):
            raise ConfigError(f"a link of {bytes_per_second} bytes/s: must be a number above 0")
        self._rate = bytes_per_second
        self._clock = clock
        self._free_at = clock()  # when the link has carried everything so far

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that keeps the link responsive."""
        return max(SMALLEST_CHUNK, int(self._rate * CHUNK_SECONDS))

    def delay(self, nbytes: int) -> float:
        """Seconds from now until ``nbytes`` more have been carried."""
        now = self._clock()
        self._free_at = max(self._free_at, now - BURST_SECONDS) + nbytes / self._rate
        return max(0.0, self._free_at - now)
