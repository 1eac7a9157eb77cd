"""Activation flow control: which device may send next (paper Sec. 3.4.1).

`CappedFlow` keeps one law at every instant: ``buffered + granted <= cap`` (omega). A slot is
reserved when the turn-on is sent, not when the batch arrives: checked only on arrival, all the
devices that were turned on earlier overshoot the cap together (docs/decisions/0001).

A credit held by a slow or dead device blocks a slot, so a credit that is not used within
``timeout`` returns to the pool. If the batch it was for still arrives, it is used if a slot is
free, and otherwise dropped without penalty.

Where devices hold unequal shares of the data, credits are given out in proportion to them, and a
device whose share is small waits between two of its own until others have had enough of them
(docs/decisions/0024): with slots to spare it could send as often as it likes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from fedoptima.core.errors import ConfigError, InvariantBroken, ProtocolViolation
from fedoptima.core.influence import EQUAL, Share
from fedoptima.core.types import NodeId, value


@value
class Reception:
    accepted: bool
    turn_on: Sequence[NodeId] = ()


class FlowController(Protocol):
    """Each method returns the devices to turn on now."""

    @property
    def cap(self) -> int | None: ...  # omega
    @property
    def timeout(self) -> float | None: ...  # seconds until an unused turn-on expires
    def joined(self, device: NodeId, now: float, share: Share = EQUAL) -> Sequence[NodeId]: ...
    def received(self, device: NodeId, now: float, share: Share = EQUAL) -> Reception: ...
    def consumed(self, device: NodeId, now: float) -> Sequence[NodeId]: ...
    def left(self, device: NodeId, dropped: int, now: float) -> Sequence[NodeId]: ...
    def hold_nobody(self) -> None: ...  # all devices in the run hold equal shares
    def expire(self, now: float) -> Sequence[NodeId]: ...
    def check(self, buffered: int) -> None: ...
    @property
    def deadline(self) -> float | None: ...  # when to call expire


class OpenFlow:
    """No gate: the method's own request and response bound the queue."""

    cap = timeout = deadline = None

    def joined(self, device: NodeId, now: float, share: Share = EQUAL) -> Sequence[NodeId]:
        return ()

    def received(self, device: NodeId, now: float, share: Share = EQUAL) -> Reception:
        return Reception(accepted=True)

    def consumed(self, device: NodeId, now: float) -> Sequence[NodeId]:
        return ()

    def left(self, device: NodeId, dropped: int, now: float) -> Sequence[NodeId]:
        return ()

    def hold_nobody(self) -> None:
        pass

    def expire(self, now: float) -> Sequence[NodeId]:
        return ()

    def check(self, buffered: int) -> None:
        pass


class CappedFlow:
    """Credits against one global cap, and a line of devices that wait for one.

    The line is ordered by batches granted so far, relative to the devices' shares. When a device
    enters it, its count is raised to that of the last grant, so it cannot claim many credits at
    once after waiting: with equal shares a waiting device gets a credit within K grants (start-time
    fair queueing). With ``balanced=False`` the line is first come, first served: the FIFO ablation
    switches off this balance as well.
    """

    def __init__(self, cap: int, *, timeout: float | None = None, balanced: bool = True) -> None:
        if cap < 1:
            raise ConfigError(f"the activation cap must be at least 1, got {cap}")
        if timeout is not None and timeout <= 0:
            raise ConfigError(f"the credit timeout must be above 0 seconds, got {timeout}")
        self.cap = cap
        self.timeout = timeout
        self.balanced = balanced
        self._line: list[tuple[float, int, NodeId]] = []  # (count, order, device); may be outdated
        # Devices that line up at a later grant: (grant, order, device); may be outdated.
        self._held: list[tuple[float, int, NodeId]] = []
        self._waiting: dict[NodeId, int] = {}  # the order number of a device's valid entry
        self._granted: dict[NodeId, int] = {}  # the number of the grant that the device holds
        # Its batch is late: used if a slot is free when it arrives.
        self._expired: dict[NodeId, None] = {}
        self._deadlines: deque[tuple[float, int, NodeId]] = deque()  # (time, grant, device)
        self._counts: dict[NodeId, float] = {}
        self._costs: dict[NodeId, float] = {}  # of a credit, in counts
        self._last_grant: dict[NodeId, int] = {}
        self._unlimited: dict[NodeId, None] = {}  # devices that are never held
        self._last: float = 0  # the count of the device granted last
        self._order = 0
        self._grants = 0
        self._buffered = 0

    def joined(self, device: NodeId, now: float, share: Share = EQUAL) -> Sequence[NodeId]:
        self._line_up(device, share)
        return self._grant(now)

    def received(self, device: NodeId, now: float, share: Share = EQUAL) -> Reception:
        if device in self._granted:
            del self._granted[device]
            accepted = True
        elif device in self._expired:
            del self._expired[device]
            accepted = self._has_room  # its slot may have been given to another device
        else:
            raise ProtocolViolation(f"{device} sent activations without a turn-on")
        self._buffered += accepted
        self._line_up(device, share)
        return Reception(accepted, self._grant(now))

    def consumed(self, device: NodeId, now: float) -> Sequence[NodeId]:
        self._buffered -= 1
        return self._grant(now)

    def left(self, device: NodeId, dropped: int, now: float) -> Sequence[NodeId]:
        self._buffered -= dropped
        self._granted.pop(device, None)
        self._expired.pop(device, None)
        self._waiting.pop(device, None)
        self._unlimited.pop(device, None)
        if not self._unlimited:  # those that the others waited for have left
            self._release(everybody=True)
        return self._grant(now)

    def hold_nobody(self) -> None:
        """All devices in the run hold as much as each other: those that had less have left, or
        those that had more. Nobody waits for the batches of others until it is given a share."""
        self._release(everybody=True)

    def expire(self, now: float) -> Sequence[NodeId]:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, grant, device = self._deadlines.popleft()
            if self._granted.get(device) == grant:
                del self._granted[device]
                self._expired[device] = None
        return self._grant(now)

    @property
    def deadline(self) -> float | None:
        while self._deadlines:
            at, grant, device = self._deadlines[0]
            if self._granted.get(device) == grant:
                return at
            self._deadlines.popleft()
        return None

    @property
    def _has_room(self) -> bool:
        return self._buffered + len(self._granted) < self.cap

    def _line_up(self, device: NodeId, share: Share) -> None:
        self._order += 1
        self._waiting[device] = self._order
        self._costs[device] = 1 / share.size
        self._unlimited.pop(device, None)
        if share.limit < 1:
            last = self._last_grant.get(device)
            next_one = 0.0 if last is None else last + 1 / share.limit
            heappush(self._held, (next_one, self._order, device))
        else:
            self._unlimited[device] = None
            self._enter(device, self._order)

    def _enter(self, device: NodeId, order: int) -> None:
        count = max(self._counts.get(device, 0), self._last) if self.balanced else 0
        self._counts[device] = count
        heappush(self._line, (count, order, device))

    def _release(self, *, everybody: bool = False) -> None:
        """Let devices line up whose time has come with the next grant."""
        while self._held and (everybody or self._held[0][0] <= self._grants + 1):
            _, order, device = heappop(self._held)
            if self._waiting.get(device) == order:
                self._enter(device, order)

    def _grant(self, now: float) -> Sequence[NodeId]:
        turned_on: list[NodeId] = []
        while self._has_room:
            if self._held:
                self._release()
            if not self._line:
                break
            count, order, device = heappop(self._line)
            if self._waiting.get(device) != order:
                continue
            del self._waiting[device]
            self._grants += 1
            self._granted[device] = self._grants
            self._last = count
            self._counts[device] = count + self._costs[device]
            self._last_grant[device] = self._grants
            if self.timeout is not None:
                self._deadlines.append((now + self.timeout, self._grants, device))
            turned_on.append(device)
        return turned_on

    def check(self, buffered: int) -> None:
        if buffered != self._buffered:
            raise InvariantBroken(f"{self._buffered} batches counted, {buffered} buffered")
        if not 0 <= self._buffered + len(self._granted) <= self.cap:
            raise InvariantBroken(f"{self._buffered=} {len(self._granted)=} {self.cap=}")
        held = {device for _, order, device in self._held if self._waiting.get(device) == order}
        if self._waiting.keys() - held and self._has_room:
            raise InvariantBroken("a device waits for a credit although a slot is free")
        both = self._granted.keys() & self._waiting.keys()
        if both or self._expired.keys() & (self._granted.keys() | self._waiting.keys()):
            raise InvariantBroken(f"a device is both waiting and granted: {sorted(both)}")
