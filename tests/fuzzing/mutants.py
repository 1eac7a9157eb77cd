"""Planted bugs, each of which the fault simulation has to find.

Nowhere else do tests patch classes of ours; here planting bugs in them is the point. Where a policy
would notice its bug by its own `check`, that is patched away, too: the laws must not rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import fedoptima.core.aggregation as aggregation
from fedoptima.core.aggregation import Decision, DelayLimit, Offer
from fedoptima.core.barrier import Barrier
from fedoptima.core.device import DeviceCore
from fedoptima.core.distribution import Distribution
from fedoptima.core.effects import Effect
from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import JobFailed
from fedoptima.core.flow import CappedFlow, Reception
from fedoptima.core.influence import EQUAL, Share
from fedoptima.core.jobs import ReusedStep
from fedoptima.core.membership import Roster
from fedoptima.core.messages import ActivationBatch, ModelUpdate
from fedoptima.core.programs import ServerGradient
from fedoptima.core.progress import Progress
from fedoptima.core.reuse import LeastUsed
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.core.server import ServerCore
from fedoptima.core.training import Training
from fedoptima.core.types import NodeId, Payload

Patches = Iterable[tuple[Any, str, Any]]
MUTANTS: dict[str, Callable[[], Patches]] = {}


def mutant(patches: Callable[[], Patches]) -> Callable[[], Patches]:
    MUTANTS[patches.__name__.replace("_", " ")] = patches
    return patches


@contextmanager
def planted(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        for target, attribute, bug in MUTANTS[name]():
            stack.enter_context(patch.object(target, attribute, bug))
        yield


def _unchecked(*args: object) -> None:
    pass


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
    yield CappedFlow, "check", _unchecked


@mutant
def a_credit_is_skipped_when_a_batch_is_used() -> Patches:
    def skipped(self: CappedFlow, device: NodeId, now: float) -> Sequence[NodeId]:
        self._buffered -= 1
        return ()

    yield CappedFlow, "consumed", skipped
    yield CappedFlow, "check", _unchecked


@mutant
def one_batch_more_than_the_cap() -> Patches:
    room = property(lambda self: self._buffered + len(self._granted) <= self.cap)
    yield CappedFlow, "_has_room", room
    yield CappedFlow, "check", _unchecked


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
    yield CappedFlow, "check", _unchecked


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
    yield LeastUsed, "_let_go", _unchecked
    yield LeastUsed, "check", _unchecked


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
    yield LeastUsed, "check", _unchecked


@mutant
def what_a_device_sent_stays_when_it_leaves() -> Patches:
    yield LeastUsed, "left", _unchecked


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
    yield LeastUsed, "check", _unchecked


@mutant
def an_idle_server_rests_although_batches_are_kept() -> Patches:
    chosen = LeastUsed.next

    def lazy(self: LeastUsed, version: int, progress: float) -> ReusedStep | None:
        return chosen(self, version, progress) if version % 4 != 3 else None

    yield LeastUsed, "next", lazy


# ---- sessions and membership ---------------------------------------------------------------------


@mutant
def session_numbers_are_not_looked_at() -> Patches:
    yield Roster, "is_current", lambda self, device, session: device in self.sessions


@mutant
def a_device_takes_messages_of_any_session() -> Patches:
    handle = DeviceCore.handle

    def gullible(self: DeviceCore, event: Any, now: float) -> list[Effect]:
        if hasattr(event, "session") and hasattr(event, "message") and self._session is not None:
            event = type(event)(event.sender, self._session, event.message)
        return handle(self, event, now)

    yield DeviceCore, "handle", gullible


@mutant
def an_update_that_was_used_is_asked_for_again() -> Patches:
    yield Roster, "has_settled", lambda self, device, update: False


@mutant
def a_restored_server_forgets_what_it_has_merged() -> Patches:
    wait = ServerCore._wait_for_all

    def forget(self: ServerCore) -> list[Effect]:
        self._roster._settled.clear()
        return wait(self)

    yield ServerCore, "_wait_for_all", forget


@mutant
def batches_of_a_device_that_left_stay_in_the_queue() -> Patches:
    def leave(self: FifoScheduler, device: NodeId) -> int:
        self._models.pop(device, None)
        return 0

    yield FifoScheduler, "leave", leave
    yield FifoScheduler, "check", _unchecked


# ---- updates, answers, counters ------------------------------------------------------------------


@mutant
def every_seventh_answer_is_forgotten() -> Patches:
    send = Distribution.send

    def forgetful(self: Distribution, devices: Any, roster: Roster, share: float) -> list[Effect]:
        effects = send(self, devices, roster, share)
        self.age._now += 0.0
        return effects if self.version % 7 != 6 else []

    yield Distribution, "send", forgetful


@mutant
def a_refused_update_is_not_answered() -> Patches:
    def refuse(offer: Offer) -> Decision:
        return Decision(settled=((offer.device, offer.update),), refused=True)

    yield aggregation, "_refuse", refuse


@mutant
def stale_updates_are_merged() -> Patches:
    yield DelayLimit, "refuses", lambda self, offer: False


@mutant
def samples_are_counted_twice() -> Patches:
    trained = Progress.trained

    def doubled(self: Progress, epochs: float) -> None:
        trained(self, 2 * epochs)

    yield Progress, "trained", doubled


@mutant
def an_update_counts_when_it_arrives() -> Patches:
    take = Training.take_update

    def eager(self: Training, device: NodeId, member: Any, update: ModelUpdate) -> None:
        take(self, device, member, update)
        if self.aggregation.closes_round:
            self.progress.trained(self.roster.shares.epochs(device, update.trained))

    yield Training, "take_update", eager


@mutant
def a_merge_is_no_new_version() -> Patches:
    merged = Distribution.merged

    def silent(self: Distribution, model: Payload, *, changed: bool = True) -> tuple[NodeId, ...]:
        return merged(self, model, changed=changed and self.version < 2)

    yield Distribution, "merged", silent


@mutant
def a_failed_job_blocks_the_engine() -> Patches:
    def stuck(self: Training, event: JobFailed, now: float) -> list[Effect]:
        return []

    yield Training, "job_failed", stuck


@mutant
def the_last_model_is_not_evaluated() -> Patches:
    def finish(self: ServerCore) -> list[Effect]:
        if not self.training.slot.free:
            return []
        return self._finish(self.progress.closing or "", failed=self.progress.failed)

    yield ServerCore, "_close_when_idle", finish


# ---- barriers ------------------------------------------------------------------------------------


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
    yield Barrier, "check", _unchecked


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
    yield Barrier, "check", _unchecked


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
    yield Barrier, "check", _unchecked


@mutant
def a_restored_barrier_does_not_wait_for_the_others() -> Patches:
    yield Training, "expect_all_back", lambda self: False


# ---- devices -------------------------------------------------------------------------------------


@mutant
def samples_of_an_abandoned_round_count() -> Patches:
    abandon = DeviceCore._abandon

    def keep(self: DeviceCore) -> None:
        trained = self._trained
        abandon(self)
        self._trained = trained

    yield DeviceCore, "_abandon", keep


@mutant
def the_sender_stays_on_without_a_connection() -> Patches:
    disconnect = DeviceCore._disconnect

    def keep(self: DeviceCore) -> list[Effect]:
        on = self._sender_on
        effects = disconnect(self)
        self._sender_on = on
        return effects

    yield DeviceCore, "_disconnect", keep
    yield DeviceCore, "check", _unchecked


@mutant
def an_abandoned_step_is_trained_again() -> Patches:
    abandon = DeviceCore._abandon

    def repeat(self: DeviceCore) -> None:
        step = self.step
        abandon(self)
        if self._program is not None:
            self._program.step = step

    yield DeviceCore, "_abandon", repeat
    yield ServerGradient, "gradient", _any_gradient


def _any_gradient(self: ServerGradient, message: Any) -> Any:
    if self._answered == self._sent:
        raise ProtocolViolation("unexpected gradient")
    self._answered += 1
    self._gradients.append(message)
    return self._next()


@mutant
def a_batch_is_sent_twice() -> Patches:
    put = FifoScheduler.put

    def twice(
        self: FifoScheduler, origin: NodeId, item: ActivationBatch | ModelUpdate, cost: float = 1
    ) -> None:
        put(self, origin, item, cost)
        if isinstance(item, ActivationBatch) and item.seq % 5 == 4:
            put(self, origin, item, cost)

    yield FifoScheduler, "put", twice
