"""Bugs in updates, answers and counters."""

from __future__ import annotations

from typing import Any

import fedoptima.core.aggregation as aggregation
from fedoptima.core.aggregation import Decision, DelayLimit, Offer
from fedoptima.core.distribution import Distribution
from fedoptima.core.effects import Effect
from fedoptima.core.events import JobFailed
from fedoptima.core.membership import Roster
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.progress import Progress
from fedoptima.core.server import ServerCore
from fedoptima.core.training import Training
from fedoptima.core.types import NodeId, Payload
from tests.fuzzing.mutants.planting import Patches, mutant


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
