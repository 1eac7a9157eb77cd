"""When updates are folded into the global model, and at what weight. Decides; never adds tensors.

Whatever is decided about an update, its device is answered: a device that hands in waits for the
global model, so a refusal without an answer would end its training (docs/decisions/0002).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from fedoptima.core.errors import ConfigError, InvariantBroken
from fedoptima.core.jobs import Merge, Part, ServerOptimizer
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.staleness import StalenessRule
from fedoptima.core.types import NodeId


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many devices there are, as far as a barrier needs to know."""

    members: int  # connected now, or expected back after a restart
    known: int  # ever joined


@dataclass(frozen=True, slots=True)
class Offer:
    """An update handed in, and what is known when it is decided on."""

    device: NodeId
    update: ModelUpdate
    samples: int  # that the device holds
    version: int  # of the global model
    fleet: Fleet
    now: float

    @property
    def staleness(self) -> int:
        """Below 0 the server went back to an older checkpoint than the update began with."""
        return self.version - self.update.version


@dataclass(frozen=True, slots=True)
class Decision:
    merge: Merge | None = None
    refresh: tuple[NodeId, ...] = ()  # devices that next receive the global model
    settled: tuple[tuple[NodeId, ModelUpdate], ...] = ()  # updates that need not be handed in again
    refused: bool = False


WAIT = Decision()


class AggregationPolicy(Protocol):
    closes_round: bool  # does every merge end a round, or only K of them?
    max_delay: int  # D: updates that are more versions behind are refused

    def offer(self, offer: Offer) -> Decision: ...
    def holds(self, device: NodeId) -> bool: ...  # an update that is discarded if its device leaves
    def left(self, device: NodeId) -> None: ...
    def reconsider(self, *, fleet: Fleet, now: float) -> Decision: ...  # after a leave, in time
    def check(self) -> None: ...
    @property
    def deadline(self) -> float | None: ...  # when to reconsider


def _refuse(offer: Offer) -> Decision:
    settled = ((offer.device, offer.update),)
    return Decision(refresh=(offer.device,), settled=settled, refused=True)


def _is_stale(offer: Offer, max_delay: int) -> bool:
    # With a negative staleness the update belongs to a history that no longer exists.
    return not 0 <= offer.staleness <= max_delay


class _NoBarrier:
    """Decides on every update when it is offered, and keeps it when its device leaves."""

    closes_round = False
    deadline = None

    def holds(self, device: NodeId) -> bool:
        return False

    def left(self, device: NodeId) -> None:
        pass

    def reconsider(self, *, fleet: Fleet, now: float) -> Decision:
        return WAIT

    def check(self) -> None:
        pass


class AsyncStaleness(_NoBarrier):
    """FedAsync: fold in each update on arrival, at a weight that falls with its staleness."""

    def __init__(self, max_delay: int, rule: StalenessRule | None = None) -> None:
        if max_delay < 0:
            raise ConfigError(f"the maximum delay must be at least 0, got {max_delay}")
        self.max_delay = max_delay  # D
        self.rule = rule or StalenessRule()

    def offer(self, offer: Offer) -> Decision:
        if _is_stale(offer, self.max_delay):
            return _refuse(offer)
        device, update, weight = offer.device, offer.update, self.rule.weight(offer.staleness)
        merge = Merge(1 - weight, (Part(device, weight, update.data),), refresh=(device,))
        return Decision(merge, (device,), ((device, update),))


class Barrier:
    """FedAvg: wait for every device, then replace the model by the mean weighted by samples held.

    ``on_leave`` says what a leaving device does to the barrier: "drop" continues without
    it, "wait" waits until it is back. After ``timeout`` (seconds after the first arrival) it merges
    without the devices that have not handed in; their updates come too late and are refused.
    """

    closes_round = True
    max_delay = 0

    def __init__(
        self, *, on_leave: Literal["drop", "wait"] = "drop", timeout: float | None = None
    ) -> None:
        if timeout is not None and timeout <= 0:
            raise ConfigError(f"the barrier's timeout must be above 0 seconds, got {timeout}")
        self.on_leave = on_leave
        self.timeout = timeout
        self.deadline: float | None = None
        self._pool: dict[NodeId, tuple[ModelUpdate, int]] = {}

    def offer(self, offer: Offer) -> Decision:
        if _is_stale(offer, self.max_delay):
            return _refuse(offer)
        self._pool[offer.device] = (offer.update, offer.samples)
        if self.timeout is not None and self.deadline is None:
            self.deadline = offer.now + self.timeout
        return self.reconsider(fleet=offer.fleet, now=offer.now)

    def holds(self, device: NodeId) -> bool:
        return device in self._pool

    def left(self, device: NodeId) -> None:
        self._pool.pop(device, None)
        if not self._pool:
            self.deadline = None  # no update waits: the time runs from the next first arrival

    def reconsider(self, *, fleet: Fleet, now: float) -> Decision:
        needed = fleet.members if self.on_leave == "drop" else fleet.known
        late = self.deadline is not None and now >= self.deadline
        return self._open() if self._pool and (late or len(self._pool) >= needed) else WAIT

    def _open(self) -> Decision:
        devices = tuple(sorted(self._pool))
        total = sum(self._pool[d][1] for d in devices)
        parts = tuple(Part(d, self._pool[d][1] / total, self._pool[d][0].data) for d in devices)
        settled = tuple((d, self._pool[d][0]) for d in devices)
        self._pool.clear()
        self.deadline = None
        return Decision(Merge(0.0, parts, refresh=devices), devices, settled)

    def check(self) -> None:
        if (self.deadline is not None) != (self.timeout is not None and bool(self._pool)):
            raise InvariantBroken(f"{len(self._pool)} updates wait until {self.deadline}")


class Buffered(_NoBarrier):
    """FedBuff: collect ``size`` deltas, then move the model by their scaled mean.

    Devices continue at once with the current model. An accepted delta stays when its device leaves.
    """

    def __init__(
        self,
        size: int,
        max_delay: int,
        *,
        rule: StalenessRule | None = None,
        server_optimizer: ServerOptimizer | None = None,
    ) -> None:
        if size < 1:
            raise ConfigError(f"the buffer must hold at least 1 update, got {size}")
        if max_delay < 0:
            raise ConfigError(f"the maximum delay must be at least 0, got {max_delay}")
        self.size = size  # Z
        self.max_delay = max_delay
        self.rule = rule or StalenessRule("polynomial", a=0.5)
        self.server_optimizer = server_optimizer or ServerOptimizer()
        self._pool: list[tuple[NodeId, ModelUpdate, float]] = []

    def offer(self, offer: Offer) -> Decision:
        if _is_stale(offer, self.max_delay):
            return _refuse(offer)
        device, settled = offer.device, ((offer.device, offer.update),)
        self._pool.append((device, offer.update, self.rule.weight(offer.staleness)))
        if len(self._pool) < self.size:
            return Decision(refresh=(device,), settled=settled)
        pool = sorted(self._pool, key=lambda entry: entry[0])
        parts = tuple(Part(d, weight / self.size, u.data) for d, u, weight in pool)
        self._pool.clear()
        merge = Merge(1.0, parts, refresh=(device,), server_optimizer=self.server_optimizer)
        return Decision(merge, (device,), settled)

    def check(self) -> None:
        if len(self._pool) >= self.size:
            raise InvariantBroken(f"{len(self._pool)} deltas wait in a buffer of {self.size}")
