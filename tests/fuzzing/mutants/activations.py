"""Bugs in flow control, and in the reuse of activations."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.core.effects import Effect
from fedoptima.core.flow import CappedFlow, Reception
from fedoptima.core.influence import EQUAL, Share
from fedoptima.core.jobs import ReusedStep
from fedoptima.core.reuse import LeastUsed
from fedoptima.core.training import Training
from fedoptima.core.types import NodeId
from tests.fuzzing.mutants.planting import Patches, mutant, unchecked

# ---- flow control --------------------------------------------------------------------------------


@mutant
def the_credit_of_a_device_that_leaves_is_lost() -> Patches:
    left = CappedFlow.left

    def leaky(self: CappedFlow, device: NodeId, dropped: int, now: float) -> Sequence[NodeId]:
        held = self._granted.get(device)
        turned_on = left(self, device, dropped, now)
        if held is not None:
            self._granted[device] = held
        return turned_on

    yield CappedFlow, "left", leaky
    yield CappedFlow, "check", unchecked


@mutant
def a_credit_is_skipped_when_a_batch_is_used() -> Patches:
    def skipped(self: CappedFlow, device: NodeId, now: float) -> Sequence[NodeId]:
        self._buffered -= 1
        return ()

    yield CappedFlow, "consumed", skipped
    yield CappedFlow, "check", unchecked


@mutant
def one_batch_more_than_the_cap() -> Patches:
    room = property(lambda self: self._buffered + len(self._granted) <= self.cap)
    yield CappedFlow, "_has_room", room
    yield CappedFlow, "check", unchecked


@mutant
def a_device_that_is_back_does_not_line_up_again() -> Patches:
    joined = CappedFlow.joined

    def forgetful(
        self: CappedFlow, device: NodeId, now: float, share: Share = EQUAL
    ) -> Sequence[NodeId]:
        return () if device in self._counts else joined(self, device, now, share)

    yield CappedFlow, "joined", forgetful


@mutant
def a_late_batch_takes_a_slot_that_another_has() -> Patches:
    received = CappedFlow.received

    def welcoming(self: CappedFlow, device: NodeId, now: float, share: Share = EQUAL) -> Reception:
        if device in self._expired:
            del self._expired[device]
            self._granted[device] = 0
        return received(self, device, now, share)

    yield CappedFlow, "received", welcoming
    yield CappedFlow, "check", unchecked


# ---- activation reuse ----------------------------------------------------------------------------


@mutant
def a_batch_is_reused_before_fresh_ones() -> Patches:
    pump = Training.pump

    def hasty(self: Training, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.slot.free and self.progress.closing is None and self.models.version % 3 == 2:
            again = self._reused_step(now)
            effects = [] if again is None else [self.slot.run(again)]
        return effects + pump(self, now)

    yield Training, "pump", hasty


@mutant
def old_batches_are_reused() -> Patches:
    yield LeastUsed, "_let_go", unchecked
    yield LeastUsed, "check", unchecked


@mutant
def a_batch_is_reused_without_end() -> Patches:
    chosen = LeastUsed.next

    def again(self: LeastUsed, version: int, progress: float) -> ReusedStep | None:
        first = next((queue[0] for queue in self._used if queue), None)
        step = chosen(self, version, progress)
        if step is not None and step.use == self.rule.uses and first is not None:
            self._used[-1].append(first)
        return step

    yield LeastUsed, "next", again
    yield LeastUsed, "check", unchecked


@mutant
def what_a_device_sent_stays_when_it_leaves() -> Patches:
    yield LeastUsed, "left", unchecked


@mutant
def the_most_used_batch_is_reused_first() -> Patches:
    def most_used(self: LeastUsed, version: int, progress: float) -> ReusedStep | None:
        self._used.reverse()
        try:
            return chosen(self, version, progress)
        finally:
            self._used.reverse()

    chosen = LeastUsed.next
    yield LeastUsed, "next", most_used
    yield LeastUsed, "check", unchecked


@mutant
def an_idle_server_rests_although_batches_are_kept() -> Patches:
    chosen = LeastUsed.next

    def lazy(self: LeastUsed, version: int, progress: float) -> ReusedStep | None:
        return chosen(self, version, progress) if version % 4 != 3 else None

    yield LeastUsed, "next", lazy
