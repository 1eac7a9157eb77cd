"""One direction of one device's connection: bandwidth, latency, and which message goes first.

Messages of a class leave in the order they were handed over. Control messages and models overtake
activations and gradients, even one that is partly sent: the network driver sends those in chunks,
so a model waits for one chunk at most.
"""

from __future__ import annotations

from collections import deque

from fedoptima.core.messages import Message, is_bulk, nbytes
from fedoptima.core.types import value


@value
class Envelope:
    message: Message
    session: int


class Link:
    def __init__(self, bytes_per_second: float, latency: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.latency = latency
        self.generation = 0  # a completion announced under an older number is void
        self._urgent: deque[tuple[Envelope, float]] = deque()  # (envelope, bytes still to go)
        self._bulk: deque[tuple[Envelope, float]] = deque()
        self._since = 0.0  # when the envelope in front began, or continued, to move

    def put(self, envelope: Envelope, now: float) -> bool:
        """Hand over an envelope; true if it goes to the front: the announced completion is void."""
        bulk = is_bulk(envelope.message)
        in_front = not (self._urgent or (bulk and self._bulk))
        if in_front:
            self._account(now)
        queue = self._bulk if bulk else self._urgent
        queue.append((envelope, float(nbytes(envelope.message))))
        return in_front

    def take(self, now: float) -> Envelope:
        """The envelope in front has fully left."""
        self._since = now
        self.generation += 1
        envelope, _ = (self._urgent or self._bulk).popleft()
        return envelope

    def set_bandwidth(self, bytes_per_second: float, now: float) -> None:
        self._account(now)
        self.bytes_per_second = bytes_per_second

    def clear(self, now: float) -> None:
        self._urgent.clear()
        self._bulk.clear()
        self._since = now
        self.generation += 1

    def done_at(self) -> float | None:
        """When the envelope in front will have left, if nothing changes."""
        queue = self._urgent or self._bulk
        if not queue:
            return None
        return self._since + queue[0][1] / self.bytes_per_second

    def _account(self, now: float) -> None:
        """Account for what has moved so far; the announced completion is void."""
        queue = self._urgent or self._bulk
        if queue:
            envelope, left = queue[0]
            moved = (now - self._since) * self.bytes_per_second
            queue[0] = (envelope, max(0.0, left - moved))
        self._since = now
        self.generation += 1
