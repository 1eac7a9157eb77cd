"""The server while a run trains (paper Alg. 4): schedule, train or aggregate, answer.

Policies decide (scheduler, flow, aggregation); this only passes messages between them and the
Compute Engine.
"""

from __future__ import annotations

from fedoptima.core.aggregation import Decision
from fedoptima.core.effects import Effect, Fold, Note, NoteKind
from fedoptima.core.enrolment import Enrolment
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.events import JobDone, JobFailed
from fedoptima.core.jobs import (
    CloseCopy,
    CutMerge,
    CutModel,
    CutStep,
    FoldedMerge,
    Merge,
    OpenCopy,
    PlanRun,
    ReusedStep,
    RobustMerge,
    ServerStep,
)
from fedoptima.core.messages import ActivationBatch, GradientBatch, ModelUpdate
from fedoptima.core.offers import offer_of, refuse
from fedoptima.core.robust import based, book, faults, merged_parts
from fedoptima.core.types import NodeId

CREDIT, BARRIER = "credit", "barrier"  # timers


class Training(Enrolment):
    # ---- work --------------------------------------------------------------------------------

    def pump(self, now: float) -> list[Effect]:
        """Hand the idle Compute Engine its next job, if there is one."""
        effects: list[Effect] = []
        while self.slot.free and self.progress.closing is None:
            if (copy := self.models.next_copy(self.roster)) is not None:
                effects.append(self.slot.run(copy))
            elif self._reconsider_due:
                self._reconsider_due = False
                decision = self.aggregation.reconsider(now)
                effects += self._carry_out(decision, now)
            elif (task := self.scheduler.get()) is not None:
                device, item = task
                if isinstance(item, ModelUpdate):
                    effects += self._offer(device, item, now)
                else:
                    effects += self.roster.turn_on(self.flow.consumed(device, now))
                    effects.append(self.slot.run(self._server_step(device, item, now)))
            elif (again := self._reused_step(now)) is not None:
                effects.append(self.slot.run(again))
            else:
                break
        return effects

    def _server_step(self, device: NodeId, batch: ActivationBatch, now: float) -> ServerStep:
        whole = (
            *(device, self.roster.sessions[device], batch.seq, batch.data),
            *(self.progress.share(now), self._program.kind == "gradient"),
            *(batch.part, batch.parts),
        )
        return CutStep(*whole, batch.cut) if self.cuts else ServerStep(*whole)

    def _reused_step(self, now: float) -> ReusedStep | None:
        if not self.reuse.kept:
            return None
        return self.reuse.next(self.models.version, self.progress.share(now))

    def _offer(self, device: NodeId, update: ModelUpdate, now: float) -> list[Effect]:
        if (member := self.roster.members.get(device)) is not None:
            member.update = None
        if device in self._kept:
            self._kept = {other: kept for other, kept in self._kept.items() if other != device}
        share, models = self._share(device), self.models
        offer = offer_of(device, update, self.roster, models, share, self.cuts, now)
        decision = self.aggregation.offer(offer)
        effects: list[Effect] = []
        if decision.refused:
            max_delay = self.aggregation.max_delay
            effects.append(refuse(offer, self.roster, self.progress, max_delay))
            self._reconsider_due = True  # it may have to wait for a round, and there may be none
        if decision.counted < 1:
            effects.append(Note(NoteKind.UPDATE_SCALED, device, repr(decision.counted)))
        effects += self._carry_out(decision, now)
        if decision.merge is None:
            effects += self.progress.take_stock(self.models.version)
        return effects

    def _carry_out(self, decision: Decision, now: float) -> list[Effect]:
        merge = decision.merge

        def epochs_of(device: NodeId, trained: int) -> float:
            return self.roster.shares.epochs(device, trained) * decision.counted

        if self.models.remembers and merge is not None and not isinstance(merge, FoldedMerge):
            merge = based(merge, decision.settled, self.models.base_of, epochs_of, self._robust)
        for device, update in decision.settled:
            # Counted here and not on arrival: an update discarded by a barrier is handed in again.
            self.roster.settle(device, update.data.id)
            if not decision.refused and not isinstance(merge, RobustMerge):
                self.progress.trained(epochs_of(device, update.processed))
        text = "nothing came from it in time; the round goes on without it"
        orders: list[Effect] = [] if decision.fold is None else [Fold(decision.fold)]
        orders += [Note(NoteKind.NOT_WAITED_FOR, device, text) for device in decision.late]
        if merge is None:
            devices = (*decision.refresh, *decision.begins)
            return [*orders, *self._between_rounds(devices), *self._answer(devices, now)]
        self.models.merging(decision.refresh, decision.size)
        self._updates = decision.updates
        return [*orders, self.slot.run(merge)]

    def job_done(self, event: JobDone, now: float) -> list[Effect]:
        self.slot.done(event.ticket)
        match event.job:  # the most frequent first
            case ServerStep() as step:
                self.progress.weights_changed = True
                here = self.roster.is_current(step.origin, step.session)
                distrusted = self.roster.distrusts(step.origin, step.session)
                if not (distrusted or isinstance(step, ReusedStep)):
                    self.reuse.keep(step, self.models.version, here=here)
                if not (step.return_gradient and here):
                    return []
                self.aggregation.exchanged(step.origin, now)
                gradient = GradientBatch(step.seq, step.part, event.result)
                return [self.roster.send(step.origin, gradient)]
            case Merge() as merge:
                return self._merged(merge, event, now)
            case PlanRun():
                return self.begin(event, now)
            case OpenCopy(device, session):
                alive = self.roster.is_current(device, session)
                return self._send_model([device], now) if alive else []
            case CutModel(device, session):
                alive = self.roster.is_current(device, session)
                return self._send_model([device], now, event.result) if alive else []
            case CloseCopy():
                return []
        raise InvariantBroken(f"a server does not run {type(event.job).__name__}")

    def job_failed(self, event: JobFailed, now: float) -> list[Effect]:
        """A step or a merge of one device's data is given up."""
        self.slot.done(event.ticket)
        self.models.merging((), 1.0)
        if isinstance(event.job, ServerStep):
            self.distrust(event.job.origin)
        return self._begin_round(now) if isinstance(event.job, Merge) else []

    def distrust(self, device: NodeId) -> None:
        self.reuse.forget(device)  # and what is being trained on is not kept
        self.roster.distrust(device)

    def _merged(self, merge: Merge, event: JobDone, now: float) -> list[Effect]:
        notes: list[Effect] = []
        if isinstance(merge, RobustMerge):
            notes = book(merge, event.text, self.roster, self.progress)
        for number in faults(event.text):
            self.distrust(merge.parts[number].device)
        merged = len(merged_parts(event))
        if self.cuts and merged and isinstance(merge, CutMerge):
            self.cuts.merged(merge.cut, self.models.merging_size)
        waiting = self.models.merged(event.result, changed=merged > 0)
        self.models.close_copies((part.device for part in merge.parts), self.roster)
        if merged:
            self.progress.merged(
                self._updates * merged / len(merge.parts),
                closes_round=self.aggregation.closes_round,
                members=len(self.roster.members),
            )
        stock = self.progress.take_stock(self.models.version)
        notes += [*stock, *self._between_rounds(waiting)]
        return [*notes, *self._send_model(waiting, now), *self._begin_round(now)]

    def _begin_round(self, now: float) -> list[Effect]:
        """After a merge: behind a barrier its newcomers take part now."""
        newcomers = self.aggregation.merged(self.roster.members, now)
        return self._answer(newcomers, now) if self.progress.closing is None else []

    # ---- time --------------------------------------------------------------------------------

    @property
    def deadlines(self) -> dict[str, float | None]:
        """When each policy wants to be woken, by the timer's key."""
        # A barrier whose time is over while a job runs must not be woken repeatedly until it ends.
        barrier = None if self._reconsider_due else self.aggregation.deadline
        return {CREDIT: self.flow.deadline, BARRIER: barrier}

    def wake(self, key: str, now: float) -> list[Effect]:
        """A deadline has come."""
        if key == CREDIT:
            return self.roster.turn_on(self.flow.expire(now))
        if key != BARRIER:  # the barrier no longer waits for devices that are not back by now
            self.aggregation.give_up([d for d in self._expected if d not in self.roster.members])
            self._expected.clear()
        self._reconsider_due = True
        return []

    def check(self) -> None:
        self.roster.check()
        self.scheduler.check()
        self.reuse.check()
        self.flow.check(self.scheduler.buffered)
        self.aggregation.check()

    @property
    def has_overlooked_work(self) -> bool:
        """Is the engine idle although there is something to do?"""
        return self.slot.free and (self.models.copies_due or self._reconsider_due)
