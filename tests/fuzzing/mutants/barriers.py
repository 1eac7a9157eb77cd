"""Bugs in barriers."""

from __future__ import annotations

from fedoptima.core.aggregation import Decision, Offer
from fedoptima.core.barrier import Barrier
from fedoptima.core.training import Training
from fedoptima.core.types import NodeId
from tests.fuzzing.mutants.planting import Patches, mutant, unchecked


@mutant
def a_barrier_counts_a_device_that_left() -> Patches:
    left = Barrier.left

    def keep(self: Barrier, device: NodeId, now: float, *, awaited: bool = False) -> None:
        held = self._pool.get(device)
        left(self, device, now, awaited=awaited)
        if held is not None:
            self._pool[device] = held
            self._missing.pop(device, None)
            self._away.pop(device, None)
            self._absent.pop(device, None)
            self._somebody_waits(now)

    yield Barrier, "left", keep
    yield Barrier, "check", unchecked


@mutant
def a_barrier_waits_for_a_device_that_left() -> Patches:
    left = Barrier.left

    def wait(self: Barrier, device: NodeId, now: float, *, awaited: bool = False) -> None:
        missing = device in self._missing
        left(self, device, now, awaited=awaited)
        if missing:
            self._absent.pop(device, None)
            self._missing[device] = self._away[device] = None
            self._set_deadline()

    def enters(self: Barrier, device: NodeId, now: float) -> bool:
        self._newcomers[device] = None
        self._somebody_waits(now)
        return False

    yield Barrier, "left", wait
    yield Barrier, "enters", enters
    yield Barrier, "check", unchecked


@mutant
def a_barrier_opens_for_the_first() -> Patches:
    offer = Barrier.offer

    def hasty(self: Barrier, given: Offer) -> Decision:
        if not given.staleness and len(self._missing) > 1 and not self._away:
            others = [d for d in self._missing if d != given.device and d not in self._arriving]
            for device in others:
                del self._missing[device]
                self._absent[device] = None
        return offer(self, given)

    yield Barrier, "offer", hasty
    yield Barrier, "check", unchecked


@mutant
def a_restored_barrier_does_not_wait_for_the_others() -> Patches:
    yield Training, "expect_all_back", lambda self: False


@mutant
def a_restored_barrier_forgets_what_is_in_the_sum() -> Patches:
    left = Barrier.left

    def forget(self: Barrier, device: NodeId, now: float, *, awaited: bool = False) -> None:
        folds, self.folds = self.folds, self.folds and not awaited
        left(self, device, now, awaited=awaited)
        self.folds = folds

    yield Barrier, "left", forget
