"""The server (paper Alg. 4): receive, schedule, train or aggregate, answer.

Policies decide (scheduler, flow, aggregation, stopping); this machine only carries messages
between them and the Compute Engine. A handler checks first and changes afterwards: one that
refuses a message with ProtocolViolation leaves the machine as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from fedoptima.core.aggregation import Decision, Fleet
from fedoptima.core.effects import Effect, Evaluate, Halt, Note, NoteKind, Send, SetTimer
from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.events import (
    Connected,
    Disconnected,
    Evaluated,
    EvaluationFailed,
    Event,
    JobDone,
    JobFailed,
    Received,
    TimerFired,
)
from fedoptima.core.job_slot import JobSlot
from fedoptima.core.jobs import (
    CloseCopy,
    DeviceProfile,
    Merge,
    OpenCopy,
    PlanRun,
    ServerStep,
)
from fedoptima.core.machine import State
from fedoptima.core.membership import Member, Roster
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    Failed,
    GlobalModel,
    GradientBatch,
    HandIn,
    Join,
    Message,
    ModelUpdate,
    Stop,
    ToDevice,
    TurnOn,
)
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.progress import Progress
from fedoptima.core.serialization import freeze
from fedoptima.core.settings import ServerSettings
from fedoptima.core.types import NodeId, Payload


class ServerPhase(Enum):
    GATHERING = "gathering"
    PLANNING = "planning"
    RUNNING = "running"
    CLOSING = "closing"  # no new work; one last evaluation
    STOPPED = "stopped"


GATHER, TIME_LIMIT, CREDIT, BARRIER = "gather", "time limit", "credit", "barrier"


class ServerCore:
    def __init__(self, method: Method, settings: ServerSettings) -> None:
        self._program = method.program
        self._training = method.training
        self._scheduler = method.scheduler()
        self._flow = method.flow()
        self._aggregation = method.aggregation()
        self._settings = settings
        self._roster = Roster()
        self._phase = ServerPhase.GATHERING
        self._now = 0.0
        self._plan = ""
        self._model: Payload | None = None
        self._copies: deque[OpenCopy | CloseCopy] = deque()  # to be run before anything else
        self._reconsider_due = False  # somebody left, or a barrier's time is over
        self._refresh: tuple[NodeId, ...] = ()  # who gets the result of the running merge
        self._slot = JobSlot()
        self._timers: dict[str, float] = {}
        self._changed = False  # weights differ from the last ones evaluated
        self._reason = ""
        self.progress = Progress(settings.stop, settings.evaluate_every)
        self.version = 0  # t
        self.stopped = False

    @property
    def sessions(self) -> Mapping[NodeId, int]:
        """Who is connected, and under which number."""
        return self._roster.sessions

    @property
    def has_barrier(self) -> bool:
        """Does a merge wait for all who are there?"""
        return self._aggregation.closes_round

    def leaving_order(self) -> list[tuple[NodeId, int]]:
        """Every session, in the order in which they end when all end at once.

        Those whose updates wait behind a barrier go first: it must not open for whoever is left.
        """
        holds = self._aggregation.holds
        return sorted(self._roster.sessions.items(), key=lambda item: (not holds(item[0]), item[0]))

    @property
    def members(self) -> Mapping[NodeId, Member]:
        """Who has joined."""
        return self._roster.members

    @property
    def planned(self) -> bool:
        """There is a plan, and the run is not over."""
        return self._phase in (ServerPhase.RUNNING, ServerPhase.CLOSING)

    @property
    def timers(self) -> Mapping[str, float]:
        """Those that have been set and have not fired yet, and when they are due."""
        return self._timers

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self._phase is ServerPhase.STOPPED:
            return self._turn_away(event)
        self._now = now
        effects = self._react(event)
        if self._phase is ServerPhase.RUNNING:
            effects += self._pump()
            effects += self._arm_timers()
        if self._phase is ServerPhase.CLOSING:
            effects += self._close_when_idle()
        return effects

    def _react(self, event: Event) -> list[Effect]:
        match event:
            case Connected(device, session):
                gone = self._remove(device) if device in self._roster.sessions else []
                self._roster.sessions[device] = session
                return gone
            case Disconnected(device, session):
                current = self._roster.sessions.get(device) == session
                return self._remove(device) if current else []
            case Received(device, session, message):
                current = self._roster.sessions.get(device) == session
                return self._receive(device, message) if current else []
            case JobDone():
                return self._job_done(event)
            case JobFailed(_, _, error) | EvaluationFailed(_, error):
                return self._finish(error, failed=True)
            case Evaluated(index, metrics):
                return self._evaluated(index, dict(metrics))
            case TimerFired(key):
                return self._timer_fired(key)

    # ---- devices -----------------------------------------------------------------------------

    def _receive(self, device: NodeId, message: Message) -> list[Effect]:
        if isinstance(message, Join):
            return self._join(device, message)
        member = self._roster.members.get(device)
        if member is None:
            if isinstance(message, Failed):  # it could not even begin
                return [Note(NoteKind.DEVICE_FAILED, device, message.error), *self._remove(device)]
            raise ProtocolViolation(f"{device} spoke before joining")
        if self._phase in (ServerPhase.GATHERING, ServerPhase.PLANNING):
            return self._receive_early(device, member, message)
        if self._phase is ServerPhase.CLOSING:
            return []  # what still comes in is not used any more
        match message:
            case ActivationBatch():
                return self._take_activations(device, message)
            case ModelUpdate():
                if not member.owes_update:
                    raise ProtocolViolation(f"{device} handed in an update nobody waits for")
                member.owes_update, member.awaits_model = False, True
                self._scheduler.put(device, message)
                return []
            case Failed(error, diverged):
                note = Note(NoteKind.DEVICE_FAILED, device, error)
                if diverged and not self._settings.drop_diverged:
                    return [note, *self._finish(f"{device}: {error}", failed=True)]
                return [note, *self._remove(device)]
        raise ProtocolViolation(f"a device does not send {type(message).__name__}")

    def _receive_early(self, device: NodeId, member: Member, message: Message) -> list[Effect]:
        """From a device that worked under an earlier server: this one has not begun yet."""
        match message:
            case ModelUpdate():  # to be asked for when the run begins
                member.join = replace(member.join, training=False, pending=message.data.id)
            case Failed(error):
                return [Note(NoteKind.DEVICE_FAILED, device, error), *self._remove(device)]
        return []

    def _join(self, device: NodeId, join: Join) -> list[Effect]:
        if join.samples < 1 or join.flops_per_second <= 0 or join.bytes_per_second <= 0:
            raise ProtocolViolation(f"{device} joined with impossible figures: {join}")
        known = self._roster.members.get(device)
        if known is not None:
            if not known.join.training and known.join.pending is None:
                raise ProtocolViolation(f"{device} joined twice")
            known.join = join  # it gave up what it had brought along: see DeviceCore._assign
            return self._welcome(device, known) if self._phase is ServerPhase.RUNNING else []
        member = self._roster.add(device, join)
        match self._phase:
            case ServerPhase.GATHERING:
                return self._plan_when_complete()
            case ServerPhase.RUNNING:
                return self._admit(device, member)
        return []

    def _plan_when_complete(self) -> list[Effect]:
        settings = self._settings
        if len(self._roster.members) >= settings.devices:
            return self._begin_planning()
        if settings.patience is not None and GATHER not in self._timers:
            return [self._set_timer(GATHER, self._now + settings.patience)]
        return []

    def _begin_planning(self) -> list[Effect]:
        self._phase = ServerPhase.PLANNING
        profiles = tuple(
            DeviceProfile(d, m.join.samples, m.join.flops_per_second, m.join.bytes_per_second)
            for d, m in sorted(self._roster.members.items())
        )
        return [self._slot.run(PlanRun(profiles))]

    def _begin(self, plan: str, model: Payload) -> list[Effect]:
        self._phase = ServerPhase.RUNNING
        self._plan, self._model = plan, model
        self._changed = True  # no run ends without an evaluation
        self.progress.begin(self._now, len(self._roster.members))
        effects: list[Effect] = []
        if self._settings.stop.seconds is not None:
            effects.append(self._set_timer(TIME_LIMIT, self._now + self._settings.stop.seconds))
        for device, member in sorted(self._roster.members.items()):
            effects += self._admit(device, member)
        return effects

    def _admit(self, device: NodeId, member: Member) -> list[Effect]:
        samples = member.join.samples
        # A device with less than a mini-batch cannot cut it into more parts than it has samples.
        parts = min(self._program.micro_batches, samples)
        program = replace(self._program, micro_batches=parts)
        iterations = self._settings.iterations_for(samples)
        self._scheduler.join(device)
        return [
            self._send(device, Assignment(self._plan, program, iterations)),
            *self._turn_on(self._flow.joined(device, self._now)),
            *self._welcome(device, member),
        ]

    def _welcome(self, device: NodeId, member: Member) -> list[Effect]:
        """Ask for the work a device brings along, or give it a model; never both."""
        join = member.join
        unsettled = join.pending is not None and not self._roster.has_settled(device, join.pending)
        if join.training or unsettled:
            member.owes_update, member.awaits_model = True, False
            return [self._send(device, HandIn())] if unsettled else []
        member.owes_update, member.awaits_model = False, True
        return self._answer([device])

    def _remove(self, device: NodeId) -> list[Effect]:
        del self._roster.sessions[device]
        member = self._roster.members.pop(device, None)
        if member is None or self._phase is not ServerPhase.RUNNING:
            return []
        if self._training is ServerTraining.PER_DEVICE:
            self._copies.append(CloseCopy(device))
        self._aggregation.left(device)
        self._reconsider_due = True  # a barrier that waited only for this device opens
        dropped = self._scheduler.leave(device)
        return self._turn_on(self._flow.left(device, dropped, self._now))

    # ---- work --------------------------------------------------------------------------------

    def _take_activations(self, device: NodeId, batch: ActivationBatch) -> list[Effect]:
        if self._training is ServerTraining.NONE:
            raise ProtocolViolation(f"{device} sent activations, but nothing trains here")
        answered = self._program.kind == "gradient"
        if answered and self._scheduler.waiting(device) >= self._program.micro_batches:
            raise ProtocolViolation(f"{device} sent activations before the last were answered")
        reception = self._flow.received(device, self._now)  # may refuse, so it goes first
        turned_on = self._turn_on(reception.turn_on)
        if not reception.accepted:
            return [Note(NoteKind.LATE_BATCH_DROPPED, device), *turned_on]
        self._scheduler.put(device, batch)
        return turned_on

    def _pump(self) -> list[Effect]:
        """Hand the idle Compute Engine its next job, if there is one."""
        effects: list[Effect] = []
        while self._slot.free and self._phase is ServerPhase.RUNNING:
            if self._copies:
                effects += self._tend_copy(self._copies.popleft())
            elif self._reconsider_due:
                self._reconsider_due = False
                effects += self._reconsider()
            else:
                task = self._scheduler.get()
                if task is None:
                    break
                device, item = task
                if isinstance(item, ModelUpdate):
                    effects += self._offer(device, item)
                else:
                    effects += self._turn_on(self._flow.consumed(device, self._now))
                    effects.append(self._slot.run(self._server_step(device, item)))
        return effects

    def _tend_copy(self, job: OpenCopy | CloseCopy) -> list[Effect]:
        if isinstance(job, OpenCopy) and self._roster.sessions.get(job.device) != job.session:
            return []
        return [self._slot.run(job)]

    def _server_step(self, device: NodeId, batch: ActivationBatch) -> ServerStep:
        return ServerStep(
            device,
            self._roster.sessions[device],
            batch.seq,
            batch.data,
            self.progress.share(self._now),
            self._program.kind == "gradient",
            batch.part,
            batch.parts,
        )

    def _offer(self, device: NodeId, update: ModelUpdate) -> list[Effect]:
        decision = self._aggregation.offer(
            device,
            update,
            samples=self._roster.samples[device],
            version=self.version,
            fleet=self._fleet(),
            now=self._now,
        )
        effects: list[Effect] = []
        if decision.refused:
            behind = self.version - update.version
            effects.append(Note(NoteKind.UPDATE_REFUSED, device, f"{behind} versions behind"))
        effects += self._carry_out(decision)
        if decision.merge is None:
            effects += self._take_stock()
        return effects

    def _reconsider(self) -> list[Effect]:
        return self._carry_out(self._aggregation.reconsider(fleet=self._fleet(), now=self._now))

    def _carry_out(self, decision: Decision) -> list[Effect]:
        for device, update in decision.settled:
            # Counted here and not on arrival: what a barrier gives up is handed in once more.
            self._roster.settle(device, update.data.id)
            self.progress.trained(update.trained, self._roster.total_samples)
        if decision.merge is None:
            return self._answer(decision.refresh)
        self._refresh = decision.refresh
        return [self._slot.run(decision.merge)]

    def _job_done(self, event: JobDone) -> list[Effect]:
        self._slot.done(event.ticket)
        match event.job:
            case PlanRun():
                if not self._program.micro_batches:
                    self._program = replace(self._program, micro_batches=event.micro_batches)
                return self._begin(event.text, event.result)
            case ServerStep() as step:
                self._changed = True
                alive = self._roster.sessions.get(step.origin) == step.session
                gradient = GradientBatch(step.seq, step.part, event.result)
                return [self._send(step.origin, gradient)] if step.return_gradient and alive else []
            case Merge() as merge:
                return self._merged(merge, event.result)
            case OpenCopy(device, session):
                alive = self._roster.sessions.get(device) == session
                return self._send_model([device]) if alive else []
            case CloseCopy():
                return []
        raise InvariantBroken(f"a server does not run {type(event.job).__name__}")

    def _merged(self, merge: Merge, model: Payload) -> list[Effect]:
        self._model = model
        self.version += 1
        self._changed = True
        self.progress.merged(
            len(merge.parts),
            closes_round=self._aggregation.closes_round,
            members=len(self._roster.members),
        )
        refresh, self._refresh = self._refresh, ()
        return [*self._take_stock(), *self._send_model(refresh)]

    # ---- answers -----------------------------------------------------------------------------

    def _answer(self, devices: Iterable[NodeId]) -> list[Effect]:
        """Send the global model; a device with a copy on the server gets both sides fresh."""
        if self._training is not ServerTraining.PER_DEVICE:
            # One that left and is back while it is being merged gets what comes of that.
            return self._send_model(d for d in devices if d not in self._refresh)
        sessions = self._roster.sessions
        self._copies.extend(OpenCopy(d, sessions[d]) for d in devices if d in sessions)
        return []

    def _send_model(self, devices: Iterable[NodeId]) -> list[Effect]:
        if self._model is None:
            raise InvariantBroken("a model is to be sent before there is one")
        effects: list[Effect] = []
        for device in devices:
            member = self._roster.members.get(device)
            # It may have left, or come back meanwhile and been welcomed with a model already.
            if member is None or not member.awaits_model or self._phase is ServerPhase.CLOSING:
                continue
            member.awaits_model, member.owes_update = False, True
            share = self.progress.share(self._now)
            effects.append(self._send(device, GlobalModel(self.version, share, self._model)))
        return effects

    def _send(self, device: NodeId, message: ToDevice) -> Send:
        return Send(device, self._roster.sessions[device], message)

    def _turn_on(self, devices: Sequence[NodeId]) -> list[Effect]:
        return [self._send(device, TurnOn()) for device in devices]

    def _fleet(self) -> Fleet:
        return Fleet(len(self._roster.members), len(self._roster.samples))

    # ---- time --------------------------------------------------------------------------------

    def _set_timer(self, key: str, at: float) -> SetTimer:
        self._timers[key] = at
        return SetTimer(key, at)

    def _arm_timers(self) -> list[Effect]:
        """One timer a policy, for its earliest deadline; one that comes too early is set anew."""
        effects: list[Effect] = []
        # A barrier whose time is over while a job runs must not be woken again and again till then.
        barrier = None if self._reconsider_due else self._aggregation.deadline
        for key, deadline in ((CREDIT, self._flow.deadline), (BARRIER, barrier)):
            if deadline is not None and key not in self._timers:
                effects.append(self._set_timer(key, deadline))
        return effects

    def _timer_fired(self, key: str) -> list[Effect]:
        del self._timers[key]
        match key, self._phase:
            case "gather", ServerPhase.GATHERING:
                return self._begin_planning() if self._roster.members else []
            case "time limit", ServerPhase.RUNNING:
                self._close(f"{self._settings.stop.seconds:g} seconds are over")
            case "credit", ServerPhase.RUNNING:
                return self._turn_on(self._flow.expire(self._now))
            case "barrier", ServerPhase.RUNNING:
                self._reconsider_due = True
        return []

    # ---- evaluation and the end --------------------------------------------------------------

    def _take_stock(self) -> list[Effect]:
        """After an update was dealt with: evaluate if an epoch is over, stop if the budget is."""
        if self._phase is not ServerPhase.RUNNING:
            return []
        due = self.progress.evaluation_due()
        reason = self.progress.spent()
        if reason is not None:
            self._close(reason)  # which ends with an evaluation anyway
            return []
        return [self._evaluate()] if due else []

    def _evaluate(self) -> Evaluate:
        self._changed = False
        return Evaluate(self.progress.ask(), self.progress.epochs, self.version)

    def _evaluated(self, index: int, metrics: dict[str, float]) -> list[Effect]:
        reason = self.progress.answered(index, metrics)
        if reason is not None and self._phase is ServerPhase.RUNNING:
            self._close(reason)
        return []

    def _close(self, reason: str) -> None:
        self._phase = ServerPhase.CLOSING
        self._reason = reason

    def _close_when_idle(self) -> list[Effect]:
        if not self._slot.free or self.progress.waiting:
            return []
        return [self._evaluate()] if self._changed else self._finish(self._reason)

    def _finish(self, reason: str, *, failed: bool = False) -> list[Effect]:
        self._phase = ServerPhase.STOPPED
        self.stopped = True
        farewell = [self._send(device, Stop(reason)) for device in self._roster.sessions]
        return [*farewell, Halt(reason, failed)]

    def _turn_away(self, event: Event) -> list[Effect]:
        match event:
            case Received(device, session, Join()):  # too late: say so, or it waits for ever
                return [Send(device, session, Stop("the run is over"))]
        return []

    # ---- invariants and state ----------------------------------------------------------------

    def check(self) -> None:
        self._roster.check()
        self._scheduler.check()
        self._flow.check(self._scheduler.buffered)
        self._aggregation.check()
        idle = self._phase is ServerPhase.RUNNING and self._slot.free
        if idle and (self._copies or self._reconsider_due):
            raise InvariantBroken("the engine is idle although there is work")
        if self.stopped != (self._phase is ServerPhase.STOPPED):
            raise InvariantBroken(f"stopped is {self.stopped} in phase {self._phase.value}")

    def snapshot(self) -> State:
        return freeze(self)
