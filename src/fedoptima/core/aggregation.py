"""When updates are folded into the global model, and at what weight. Decides; never adds tensors.

Whatever is decided about an update, its device is answered: a device that hands in waits for the
global model, so a refusal without an answer would end its training (docs/decisions/0002).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from fedoptima.core.errors import ConfigError, InvariantBroken, RunFailed
from fedoptima.core.influence import EQUAL, Allowance, Share
from fedoptima.core.jobs import CutMerge, Merge, Part, ServerOptimizer
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.staleness import AlphaDecay, StalenessRule
from fedoptima.core.types import NodeId


@dataclass(frozen=True, slots=True)
class Offer:
    """An update handed in, and what is known when it is decided on."""

    device: NodeId
    update: ModelUpdate
    samples: int  # that the device holds
    version: int  # of the global model
    now: float
    share: Share = EQUAL  # of the device, in the data of all that are present
    age: float | None = None  # merged since its model was sent, in mean shares
    missed: float = 0.0  # of it, while the device was away
    ages: tuple[float, ...] = ()  # of the parts of its model, where devices have their own cuts

    @property
    def staleness(self) -> int:
        """Below 0 the server went back to an older checkpoint than the update began with."""
        return self.version - self.update.version

    @property
    def lateness(self) -> str:
        """Why it is refused, in words."""
        if self.staleness < 0:
            return f"{-self.staleness} versions ahead: the server went back to an older checkpoint"
        return f"{self.staleness} versions behind"

    @property
    def behind(self) -> float:
        """The staleness in merges of a mean share; with equal shares the number of versions."""
        return self.staleness if self.age is None else self.age


@dataclass(frozen=True, slots=True)
class Decision:
    merge: Merge | None = None
    refresh: tuple[NodeId, ...] = ()  # devices that next receive the global model
    settled: tuple[tuple[NodeId, ModelUpdate], ...] = ()  # updates that need not be handed in again
    size: float = 1.0  # of what is merged, in mean shares: how far the model moves on
    updates: float = 1.0  # what is merged, in rounds of a usual device
    counted: float = 1.0  # of the samples that the settled updates were trained on
    refused: bool = False
    begins: tuple[NodeId, ...] = ()  # devices that begin a round with the model as it is
    late: tuple[NodeId, ...] = ()  # devices that are not waited for any longer
    fold: Part | None = None  # is added up now, ahead of the merge that counts it


WAIT = Decision()


class AggregationPolicy(Protocol):
    closes_round: bool  # does every merge end a round, or only K of them?

    # ``round_seconds``: of the median device. ``seed``: of the run, for what is drawn by lot.
    def planned(self, round_seconds: float, now: float, seed: int = 0) -> None: ...
    def enters(self, device: NodeId, now: float) -> bool: ...  # is it sent the model at once?
    def returned(self, device: NodeId, now: float, *, current: bool) -> None: ...  # with work
    def handed_in(self, device: NodeId) -> None: ...  # its update will be offered
    def exchanged(self, device: NodeId, now: float) -> None: ...  # activations, or their gradient
    def left(self, device: NodeId, now: float, *, awaited: bool = False) -> None: ...
    def give_up(self, devices: Iterable[NodeId]) -> None: ...  # that were expected back
    def offer(self, offer: Offer) -> Decision: ...
    def holds(self, device: NodeId) -> bool: ...  # an update that is neither merged nor discarded
    def reconsider(self, now: float) -> Decision: ...  # devices have come or left, or time is over
    def merged(self, present: Container[NodeId], now: float) -> tuple[NodeId, ...]: ...  # newcomers
    def check(self) -> None: ...
    @property
    def deadline(self) -> float | None: ...  # when to reconsider
    @property
    def max_delay(self) -> int: ...  # D: updates that are further behind are refused


def _refuse(offer: Offer) -> Decision:
    settled = ((offer.device, offer.update),)
    return Decision(refresh=(offer.device,), settled=settled, refused=True)


@dataclass(frozen=True, slots=True)
class DelayLimit:
    """D: updates that are more merges behind are refused."""

    merges: int
    # Counts only what was merged while the device was away: one that is merely larger or slower
    # than the others is never refused.
    while_away: bool = False

    def __post_init__(self) -> None:
        if self.merges < 0:
            raise ConfigError(f"the maximum delay must be at least 0, got {self.merges}")

    def refuses(self, offer: Offer) -> bool:
        if offer.staleness < 0:  # it belongs to a history that no longer exists
            return True
        return (offer.missed if self.while_away else offer.behind) > self.merges


class NoBarrier:
    """Decides on every update when it is offered, and keeps it when its device leaves.

    A policy without a barrier begins with it, and adds `offer` and `max_delay`.
    """

    closes_round = False
    deadline = None

    def planned(self, round_seconds: float, now: float, seed: int = 0) -> None:
        pass

    def enters(self, device: NodeId, now: float) -> bool:
        return True

    def returned(self, device: NodeId, now: float, *, current: bool) -> None:
        pass

    def handed_in(self, device: NodeId) -> None:
        pass

    def exchanged(self, device: NodeId, now: float) -> None:
        pass

    def left(self, device: NodeId, now: float, *, awaited: bool = False) -> None:
        pass

    def give_up(self, devices: Iterable[NodeId]) -> None:
        pass

    def holds(self, device: NodeId) -> bool:
        return False

    def reconsider(self, now: float) -> Decision:
        return WAIT

    def merged(self, present: Container[NodeId], now: float) -> tuple[NodeId, ...]:
        return ()

    def check(self) -> None:
        pass


class AsyncStaleness(NoBarrier):
    """FedAsync: fold in each update on arrival, at a weight that falls with its staleness.

    ``decay``: of all weights, with the number of merges.
    Unequal shares: a device with less than the mean share has that much less weight; one with more
    counts what was merged since in shares of its own size, so that `1 / (s + 1)` is its part of
    the data, as in FedAvg. No weight exceeds that of the rule, and so none exceeds 1.
    """

    def __init__(
        self,
        delay: DelayLimit | int,
        rule: StalenessRule | None = None,
        decay: AlphaDecay | None = None,
    ) -> None:
        self.delay = DelayLimit(delay) if isinstance(delay, int) else delay
        self.rule = rule or StalenessRule()
        self.decay = decay
        self.allowance = Allowance()

    @property
    def max_delay(self) -> int:
        return self.delay.merges

    def offer(self, offer: Offer) -> Decision:
        if self.delay.refuses(offer):
            return _refuse(offer)
        device, update, size = offer.device, offer.update, offer.share.update
        wanted = self.weight(offer)
        # A method of the user's own may say anything.
        if not (isinstance(wanted, int | float) and 0 < wanted <= 1):
            said = (
                f"{wanted:g}" if isinstance(wanted, int | float) else f"a {type(wanted).__name__}"
            )
            raise RunFailed(
                f"{type(self).__name__}.weight returned {said} for an update of {device}; it must "
                "be a number above 0 and at most 1"
            )
        weight = self.allowance.take(device, offer.share, wanted)
        part = weight / wanted
        whole = (1 - weight, (Part(device, weight, update.data),), (device,))
        merge = Merge(*whole)
        if offer.ages:
            each = tuple(part * self.weight(replace(offer, age=age)) for age in offer.ages)
            merge = CutMerge(*whole, bases=(None,), cut=update.cut, weights=each)
        counted = offer.share.work * part
        settled = ((device, update),)
        return Decision(merge, (device,), settled, size * part, updates=counted, counted=counted)

    def weight(self, offer: Offer) -> float:
        """What the update should weigh, above 0 and at most 1; asked once for each of its ages."""
        size = offer.share.update
        weight = self.rule.weight(offer.behind / max(1.0, size)) * min(1.0, size)
        return weight if self.decay is None else weight * self.decay.left(offer.version)


class Buffered(NoBarrier):
    """FedBuff: collect ``size`` deltas, then move the model by their scaled mean.

    Devices continue at once with the current model. An accepted delta stays when its device leaves.
    A delta of the staleness ``average`` weighs 1, fresher ones more and older ones less, so that
    the rule shifts weight between deltas and does not lower the server's rate; 0: the rule itself.
    Unequal shares: a delta counts as much as its device's share relative to the mean, and the
    buffer is full, too, when those in it count as ``size`` together.
    """

    def __init__(
        self,
        size: int,
        delay: DelayLimit | int,
        *,
        rule: StalenessRule | None = None,
        average: float = 0.0,
        server_optimizer: ServerOptimizer | None = None,
    ) -> None:
        if size < 1:
            raise ConfigError(f"the buffer must hold at least 1 update, got {size}")
        if not average >= 0:
            raise ConfigError(f"the average staleness must be at least 0, got {average}")
        self.size = size  # Z
        self.delay = DelayLimit(delay) if isinstance(delay, int) else delay
        self.rule = rule or StalenessRule("polynomial", a=0.5)
        self.average = average
        self.server_optimizer = server_optimizer or ServerOptimizer()
        self.allowance = Allowance()
        self._pool: list[tuple[NodeId, ModelUpdate, float]] = []  # with their weights, times Z
        self._filled = 0.0  # what they count, in mean shares
        self._updates = 0.0  # and in rounds of a usual device

    @property
    def max_delay(self) -> int:
        return self.delay.merges

    def offer(self, offer: Offer) -> Decision:
        if self.delay.refuses(offer):
            return _refuse(offer)
        device, size, settled = offer.device, offer.share.update, ((offer.device, offer.update),)
        wanted = self.rule.weight(offer.behind) / self.rule.weight(self.average) * size
        weight = self.allowance.take(device, offer.share, wanted)
        part = weight / wanted
        counted = offer.share.work * part
        self._pool.append((device, offer.update, weight))
        self._filled += size * part
        self._updates += counted
        if len(self._pool) < self.size and self._filled < self.size - 0.5:
            return Decision(refresh=(device,), settled=settled, counted=counted)
        return self._merge(device, settled, counted)

    def _merge(
        self, device: NodeId, settled: tuple[tuple[NodeId, ModelUpdate], ...], counted: float
    ) -> Decision:
        whole = max(float(self.size), self._filled)
        pool = sorted(self._pool, key=lambda entry: entry[0])
        parts = tuple(Part(d, weight / whole, u.data) for d, u, weight in pool)
        if whole > self.size:  # then they weigh less than they were allowed to
            for member, _, weight in pool:
                self.allowance.add(member, weight * (self.size / whole - 1))
        merge = Merge(1.0, parts, refresh=(device,), server_optimizer=self.server_optimizer)
        moved, updates = self._filled / self.size, self._updates
        self._filled = self._updates = 0.0
        self._pool.clear()
        return Decision(merge, (device,), settled, moved, updates, counted)

    def check(self) -> None:
        if len(self._pool) >= self.size:
            raise InvariantBroken(f"{len(self._pool)} deltas wait in a buffer of {self.size}")
