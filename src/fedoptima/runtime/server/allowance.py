"""So much at once, and so much a second in the long run: what one device may ask of the server."""

from __future__ import annotations


class Allowance:
    def __init__(self, *, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._room = burst
        self._at = 0.0

    def take(self, amount: float, now: float) -> bool:
        """False: that is more than there is, and nothing is taken."""
        self._room = min(self._burst, self._room + (now - self._at) * self._per_second)
        self._at = now
        if amount > self._room:
            return False
        self._room -= amount
        return True
