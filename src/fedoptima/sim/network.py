"""Links: bandwidth, latency, and which message goes first.

Messages of a class leave in the order they were handed over. Control messages and models overtake
activations and gradients, even one that is partly sent: the network driver sends those in chunks,
so a model waits for one chunk at most.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from fedoptima.core.messages import Message, is_bulk, nbytes
from fedoptima.core.types import NodeId, value


@value
class Envelope:
    message: Message
    session: int


@value
class Passing:
    """An envelope to or from a device, on the server's link."""

    device: NodeId
    envelope: Envelope

    @property
    def message(self) -> Message:
        return self.envelope.message


class _Carried(Protocol):
    @property
    def message(self) -> Message: ...


_Item = TypeVar("_Item", bound=_Carried)


class _Queue(Generic[_Item]):
    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.generation = 0  # a completion announced under an older number is void
        self._urgent: deque[tuple[_Item, float]] = deque()  # (envelope, bytes still to go)
        self._bulk: deque[tuple[_Item, float]] = deque()
        self._since = 0.0  # when the envelope in front began, or continued, to move

    def put(self, envelope: _Item, now: float) -> bool:
        """Hand over an envelope; true if it goes to the front: the announced completion is void."""
        bulk = is_bulk(envelope.message)
        in_front = not (self._urgent or (bulk and self._bulk))
        if in_front:
            self._account(now)
        queue = self._bulk if bulk else self._urgent
        queue.append((envelope, float(nbytes(envelope.message))))
        return in_front

    def take(self, now: float) -> _Item:
        """The envelope in front has fully left."""
        self._since = now
        self.generation += 1
        envelope, _ = (self._urgent or self._bulk).popleft()
        return envelope

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


def with_packing(bytes_per_second: float, packing: float) -> float:
    """The rate of a link that waits ``packing`` seconds for a byte, besides its transfer."""
    return 1 / (1 / bytes_per_second + packing) if packing else bytes_per_second


class Link(_Queue[Envelope]):
    """One direction of one device's connection.

    ``packing``: seconds that a byte takes to be packed at one end and unpacked at the other, for
    which the link waits.
    """

    packing = 0.0  # also of links in checkpoints that are older than it

    def __init__(self, bytes_per_second: float, latency: float, packing: float = 0.0) -> None:
        super().__init__(bytes_per_second)
        self.latency = latency
        self.packing = packing
        self._set_rate(bytes_per_second)

    def set_bandwidth(self, bytes_per_second: float, now: float) -> None:
        self._account(now)
        self._set_rate(bytes_per_second)

    def _set_rate(self, bandwidth: float) -> None:
        self.bytes_per_second = with_packing(bandwidth, self.packing)


class ServerLink(_Queue[Passing]):
    """One direction of the server's own connection, which the messages of all devices pass as well.

    They come in the order in which they have left the devices' links, in both directions. A
    message moves over both links at the same time, so that one is held up here only as far as this
    link was in use by others meanwhile: all together never get more than its bandwidth.
    """

    def enter(self, passing: Passing, seconds: float, now: float) -> bool:
        """``seconds`` it was on the device's link. False: it is through here, too."""
        if self._urgent or self._bulk:
            self.put(passing, now)
            return True
        begun = max(self._since, now - seconds)  # this link was not in use from here on
        needed = nbytes(passing.message) / self.bytes_per_second
        if begun + needed <= now:
            self._since = begun + needed
            return False
        self.put(passing, now)
        self._since = begun
        return True
