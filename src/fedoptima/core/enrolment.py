"""The devices of a run that trains: joining, leaving, what they send and are sent.

A method that refuses a message with ProtocolViolation has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from fedoptima.core.cuts import Cuts
from fedoptima.core.distribution import Distribution
from fedoptima.core.effects import Effect, Note, NoteKind, Send
from fedoptima.core.errors import ConfigError, ProtocolViolation
from fedoptima.core.events import JobDone
from fedoptima.core.influence import Share
from fedoptima.core.job_slot import JobSlot
from fedoptima.core.jobs import PlanRun
from fedoptima.core.membership import Member, Roster
from fedoptima.core.messages import ActivationBatch, Assignment, HandIn, ModelUpdate
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.plan import recorded_plan
from fedoptima.core.progress import Progress
from fedoptima.core.ranges import check_range, unusual_speeds
from fedoptima.core.reuse import NoReuse, ReusePolicy
from fedoptima.core.settings import ServerSettings, predicted_round
from fedoptima.core.types import NodeId, Payload


class Enrolment:
    # These are here, because checkpoints of earlier versions do not have them.
    reuse: ReusePolicy = NoReuse()
    cuts: Cuts | None = None
    _kept: Mapping[NodeId, ModelUpdate] = MappingProxyType({})

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
        self._kept = {}  # updates that count and wait for the engine, of devices that have left
        self.scheduler = method.scheduler()
        self.reuse = method.reuse()
        self.cuts = None  # of single devices, where the plan has some
        self.flow = method.flow()
        self.aggregation = method.aggregation()
        if self._robust and getattr(self.aggregation, "folds", False):
            raise ConfigError(
                f"method.robust = {method.robust!r} compares all updates of a round: they cannot "
                "be added up before; leave out Barrier's folds"
            )
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
        plan = recorded_plan(planned.text)
        if plan is not None and plan.cuts:
            self.cuts, self.models.has_cuts = Cuts(plan), True
        self.models.begin(planned.result)
        self.progress.begin(now, len(self.roster.members))
        seconds = predicted_round(planned, self._settings, self.roster.shares.largest)
        self.aggregation.planned(seconds, now, self._settings.seed)
        effects: list[Effect] = []
        for device, member in sorted(self.roster.members.items()):
            effects += self.admit(device, member, now)
        return effects

    def admit(self, device: NodeId, member: Member, now: float) -> list[Effect]:
        member.cut = self.cuts.joined(device, member.join) if self.cuts else 0
        self._mean_share = self._mean_share or self.roster.shares.mean
        assignment = self._assignment(member)
        batch = min(self._settings.batch_size, member.join.samples)
        member.round_samples = assignment.iterations * batch
        self.scheduler.join(device)
        if all(expected in self.roster.members for expected in self._expected):
            self._expected.clear()
        return [
            *self.roster.doubts(device),
            self.roster.send(device, assignment),
            *self.roster.turn_on(self.flow.joined(device, now, self._share(device))),
            *self.welcome(device, member, now),
        ]

    def _assignment(self, member: Member) -> Assignment:
        samples = member.join.samples
        # A device with less than a mini-batch cannot cut it into more parts than it has samples.
        parts = min(self._program.micro_batches, samples)
        program = replace(self._program, micro_batches=parts, cut=member.cut)
        mean = samples if self.aggregation.closes_round else self._mean_share
        plan = self.cuts.plan_of(member.cut) if self.cuts else self._plan
        return Assignment(plan, program, self._settings.iterations_for(samples, mean))

    def _share(self, device: NodeId) -> Share:
        return self.roster.shares.share(device, self._settings.batch_size)

    def welcome(self, device: NodeId, member: Member, now: float) -> list[Effect]:
        """Ask for the work a device already has, or send it a model; never both."""
        join, member.reassigned = member.join, False
        unsettled = join.pending is not None and not self.roster.has_settled(device, join.pending)
        unsettled = unsettled and not self.aggregation.holds(device)  # it is here already
        if unsettled or (join.training and join.pending is None):  # else it lacks the answer
            member.owes_update, member.awaits_model = True, False
            self.models.age.back_with_work(device)
            current = join.version == self.models.version
            self.aggregation.returned(device, now, current=current)
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
        self.models.forget_bases(self.roster.members, self.aggregation.max_delay)
        self._reconsider_due |= not awaited  # a barrier that waited only for this device opens
        self.reuse.left(device)
        dropped = self.scheduler.leave(device)
        if self.roster.shares.equal(self._settings.batch_size):
            self.flow.hold_nobody()
        turned_on = self.roster.turn_on(self.flow.left(device, dropped, now))
        if not kept:
            return turned_on
        if (update := member.update or self._kept.get(device)) is not None:
            self._kept = {**self._kept, device: update}  # for it may come and leave once more
            self.scheduler.put(device, update)
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
        if self.cuts:
            self.cuts.check_batch(device, batch.cut)
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
        if self.cuts:
            self.cuts.check_update(device, update)
            self.cuts.measured(device, update)
        member.owes_update, member.awaits_model = False, True
        member.update = update
        self.aggregation.handed_in(device)
        self.scheduler.put(device, update)

    # ---- models ----------------------------------------------------------------------------------

    def _answer(self, devices: Iterable[NodeId], now: float) -> list[Effect]:
        return self.models.answer(devices, self.roster, self.progress.share(now))

    def _send_model(
        self, devices: Iterable[NodeId], now: float, model: Payload | None = None
    ) -> list[Effect]:
        if self.progress.closing is not None:
            return []  # no further round begins
        share = self.progress.share(now)
        sent = self.models.send(devices, self.roster, share, model)
        for effect in sent:
            if self.cuts and isinstance(effect, Send):
                self.cuts.sent(effect.to)
        return sent

    def _between_rounds(self, devices: Iterable[NodeId]) -> list[Effect]:
        """Devices whose link or speed has changed for good are planned for again.

        Such a device answers that it has no work for its new plan, and is then sent a model.
        """
        effects: list[Effect] = []
        for device in devices:
            member = self.roster.members.get(device)
            if member is None or not member.awaits_model or member.update is not None:
                continue
            if self.cuts and (why := self.cuts.replan(device)):
                member.cut, member.reassigned = self.cuts.of(device), True
                effects.append(Note(NoteKind.REPLANNED, device, why))
                effects.append(self.roster.send(device, self._assignment(member)))
        return effects
