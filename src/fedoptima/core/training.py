"""The server while a run trains (paper Alg. 4): schedule, train or aggregate, answer.

Policies decide (scheduler, flow, aggregation); this only passes messages between them and the
Compute Engine. A method that refuses a message with ProtocolViolation has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fedoptima.core.aggregation import Decision, Offer
from fedoptima.core.distribution import Distribution
from fedoptima.core.effects import Effect, Note, NoteKind
from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.events import JobDone, JobFailed
from fedoptima.core.influence import Share
from fedoptima.core.job_slot import JobSlot
from fedoptima.core.jobs import (
    CloseCopy,
    Merge,
    OpenCopy,
    PlanRun,
    ReusedStep,
    RobustMerge,
    ServerStep,
)
from fedoptima.core.membership import Member, Roster
from fedoptima.core.messages import ActivationBatch, Assignment, GradientBatch, HandIn, ModelUpdate
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.progress import Progress
from fedoptima.core.ranges import check_range, unusual_speeds
from fedoptima.core.reuse import NoReuse, ReusePolicy
from fedoptima.core.robust import based, book, faults, merged_parts
from fedoptima.core.settings import ServerSettings, predicted_round
from fedoptima.core.types import NodeId

CREDIT, BARRIER = "credit", "barrier"  # timers


class Training:
    reuse: ReusePolicy = NoReuse()  # here, because checkpoints of earlier versions do not have it

    def __init__(self, method: Method, settings: ServerSettings) -> None:
        self._program = method.program
        self._trains = method.training is not ServerTraining.NONE
        self._robust = method.robust != "none"
        self._settings = settings
        self._plan = ""
        self._mean_share = 0.0  # samples, when the run began; 0: nobody was there yet
        self._updates = 1.0  # in the running merge, of usual devices
        self._expected: dict[NodeId, None] = {}  # in the run before a restart; not all back yet
        self._reconsider_due = False  # a device left, or a barrier's time is over
        self.scheduler = method.scheduler()
        self.reuse = method.reuse()
        self.flow = method.flow()
        self.aggregation = method.aggregation()
        self.models = Distribution(
            copy_per_device=method.training is ServerTraining.PER_DEVICE, remember=method.has_bases
        )
        self.progress = Progress(settings.stop, settings.evaluate_every)
        self.roster = Roster()
        self.slot = JobSlot()

    # ---- devices -----------------------------------------------------------------------------

    def plan(self) -> list[Effect]:
        profiles = self.roster.profiles()
        unusual = unusual_speeds(profiles)
        notes = [Note(NoteKind.NOT_PLANNED_FOR, device, why) for device, why in unusual.items()]
        usual = tuple(profile for device, profile in profiles.items() if device not in unusual)
        return [*notes, self.slot.run(PlanRun(usual))]

    def begin(self, planned: JobDone, now: float) -> list[Effect]:
        if not self._program.micro_batches:
            self._program = replace(self._program, micro_batches=planned.micro_batches)
        self._plan = planned.text
        self.models.begin(planned.result)
        self.progress.begin(now, len(self.roster.members))
        seconds = predicted_round(planned, self._settings, self.roster.shares.largest)
        self.aggregation.planned(seconds, now, self._settings.seed)
        effects: list[Effect] = []
        for device, member in sorted(self.roster.members.items()):
            effects += self.admit(device, member, now)
        return effects

    def admit(self, device: NodeId, member: Member, now: float) -> list[Effect]:
        samples = member.join.samples
        # A device with less than a mini-batch cannot cut it into more parts than it has samples.
        program = replace(self._program, micro_batches=min(self._program.micro_batches, samples))
        self._mean_share = self._mean_share or self.roster.shares.mean
        mean = samples if self.aggregation.closes_round else self._mean_share
        iterations = self._settings.iterations_for(samples, mean)
        member.round_samples = iterations * min(self._settings.batch_size, samples)
        self.scheduler.join(device)
        if all(expected in self.roster.members for expected in self._expected):
            self._expected.clear()
        return [
            *self.roster.doubts(device),
            self.roster.send(device, Assignment(self._plan, program, iterations)),
            *self.roster.turn_on(self.flow.joined(device, now, self._share(device))),
            *self.welcome(device, member, now),
        ]

    def _share(self, device: NodeId) -> Share:
        return self.roster.shares.share(device, self._settings.batch_size)

    def welcome(self, device: NodeId, member: Member, now: float) -> list[Effect]:
        """Ask for the work a device already has, or send it a model; never both."""
        join = member.join
        unsettled = join.pending is not None and not self.roster.has_settled(device, join.pending)
        unsettled = unsettled and not self.aggregation.holds(device)  # it is here already
        if unsettled or (join.training and join.pending is None):  # else it lacks the answer
            member.owes_update, member.awaits_model = True, False
            self.models.age.back_with_work(device)
            self.aggregation.returned(device, now, current=join.version == self.models.version)
            return [self.roster.send(device, HandIn())] if unsettled else []
        member.owes_update, member.awaits_model = False, True
        if self.aggregation.enters(device, now):
            return self._answer([device], now)
        self._reconsider_due = True  # there may be no round that it would have to wait for
        return []

    def leave(self, device: NodeId, member: Member, now: float) -> list[Effect]:
        awaited = device in self._expected
        self.aggregation.left(device, now, awaited=awaited)
        kept = self.aggregation.holds(device)
        self.models.left(device, keep_copy=kept)
        self._reconsider_due |= not awaited  # a barrier that waited only for this device opens
        self.reuse.left(device)
        turned_on = self.roster.turn_on(self.flow.left(device, self.scheduler.leave(device), now))
        if not kept:
            return turned_on
        if member.update is not None:
            self.scheduler.put(device, member.update)
        return [Note(NoteKind.UPDATE_KEPT, device, "it counts when the round ends"), *turned_on]

    def expect_all_back(self) -> bool:
        """After a restart of the server: a barrier would open for the first device that is back and
        merge a round of one, so it waits for all devices of the run. False without a barrier."""
        if self.aggregation.closes_round:
            self._expected |= dict.fromkeys(self.roster.members)
        return bool(self._expected)

    def take_activations(self, device: NodeId, batch: ActivationBatch, now: float) -> list[Effect]:
        if not self._trains:
            raise ProtocolViolation(f"{device} sent activations, but nothing trains here")
        answered = self._program.kind == "gradient"
        if answered and self.scheduler.waiting(device) >= self._program.micro_batches:
            raise ProtocolViolation(f"{device} sent activations before the last were answered")
        share = self._share(device)
        reception = self.flow.received(device, now, share)  # may refuse, so it goes first
        turned_on = self.roster.turn_on(reception.turn_on)
        if not reception.accepted:
            return [Note(NoteKind.LATE_BATCH_DROPPED, device), *turned_on]
        self.aggregation.exchanged(device, now)
        self.scheduler.put(device, batch, 1 / share.size)
        return turned_on

    def take_update(self, device: NodeId, member: Member, update: ModelUpdate) -> None:
        if not member.owes_update:
            raise ProtocolViolation(f"{device} handed in an update that was not asked for")
        check_range("ModelUpdate.trained", update.processed, 0, member.round_samples)
        member.owes_update, member.awaits_model = False, True
        member.update = update
        self.aggregation.handed_in(device)
        self.scheduler.put(device, update)

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
            elif (
                again := self.reuse.next(self.models.version, self.progress.share(now))
            ) is not None:
                effects.append(self.slot.run(again))
            else:
                break
        return effects

    def _server_step(self, device: NodeId, batch: ActivationBatch, now: float) -> ServerStep:
        return ServerStep(
            *(device, self.roster.sessions[device], batch.seq, batch.data),
            *(self.progress.share(now), self._program.kind == "gradient"),
            *(batch.part, batch.parts),
        )

    def _offer(self, device: NodeId, update: ModelUpdate, now: float) -> list[Effect]:
        if (member := self.roster.members.get(device)) is not None:
            member.update = None
        samples, version = self.roster.shares.counted(device), self.models.version
        offer = Offer(
            *(device, update, samples, version, now, self._share(device)),
            age=self.models.age.behind(device, update.version, version),
            missed=self.models.age.missed(device),
        )
        decision = self.aggregation.offer(offer)
        effects: list[Effect] = []
        if decision.refused:
            if offer.staleness > 0:  # else the server went back to an older checkpoint: only once
                shares = self.roster.shares
                self.progress.refused(
                    device,
                    shares.epochs(device, update.processed),
                    share=shares.portion(device),
                    max_delay=self.aggregation.max_delay,
                )
            effects.append(Note(NoteKind.UPDATE_REFUSED, device, offer.lateness))
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

        if self.models.remembers and merge is not None:
            merge = based(merge, decision.settled, self.models.base_of, epochs_of, self._robust)
        for device, update in decision.settled:
            # Counted here and not on arrival: an update discarded by a barrier is handed in again.
            self.roster.settle(device, update.data.id)
            if not decision.refused and not isinstance(merge, RobustMerge):
                self.progress.trained(epochs_of(device, update.processed))
        text = "nothing came from it in time; the round goes on without it"
        notes = [Note(NoteKind.NOT_WAITED_FOR, device, text) for device in decision.late]
        if merge is None:
            return [*notes, *self._answer((*decision.refresh, *decision.begins), now)]
        self.models.merging(decision.refresh, decision.size)
        self._updates = decision.updates
        return [*notes, self.slot.run(merge)]

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
        waiting = self.models.merged(event.result, changed=merged > 0)
        self.models.close_copies((part.device for part in merge.parts), self.roster)
        if merged:
            self.progress.merged(
                self._updates * merged / len(merge.parts),
                closes_round=self.aggregation.closes_round,
                members=len(self.roster.members),
            )
        stock = self.progress.take_stock(self.models.version)
        return [*notes, *stock, *self._send_model(waiting, now), *self._begin_round(now)]

    def _begin_round(self, now: float) -> list[Effect]:
        """After a merge: behind a barrier its newcomers take part now."""
        newcomers = self.aggregation.merged(self.roster.members, now)
        return self._answer(newcomers, now) if self.progress.closing is None else []

    def _answer(self, devices: Iterable[NodeId], now: float) -> list[Effect]:
        return self.models.answer(devices, self.roster, self.progress.share(now))

    def _send_model(self, devices: Iterable[NodeId], now: float) -> list[Effect]:
        if self.progress.closing is not None:
            return []  # no further round begins
        return self.models.send(devices, self.roster, self.progress.share(now))

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
