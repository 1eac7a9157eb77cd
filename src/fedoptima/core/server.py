"""The server: which devices are connected, the phase of a run, and how it ends.

Before the run it gathers devices and has the Pre-processor plan; `Training` handles the run itself.
A handler checks first and changes afterwards: one that refuses a message with ProtocolViolation
leaves the machine as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from fedoptima.core.effects import Drop, Effect, Halt, Note, NoteKind, Send, SetTimer
from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.events import (
    Connected,
    Disconnected,
    Ended,
    Evaluated,
    EvaluationFailed,
    Event,
    Extended,
    JobDone,
    JobFailed,
    Received,
    Rejected,
    Restarted,
    TimerFired,
)
from fedoptima.core.jobs import Merge, PlanRun, source_of
from fedoptima.core.membership import Member, Roster
from fedoptima.core.messages import ActivationBatch, Failed, Join, Message, ModelUpdate, Stop
from fedoptima.core.method import Method
from fedoptima.core.progress import Progress
from fedoptima.core.ranges import check_figures
from fedoptima.core.robust import faults
from fedoptima.core.settings import ServerSettings
from fedoptima.core.stopping import StopRule
from fedoptima.core.text import quoted
from fedoptima.core.training import Training
from fedoptima.core.types import NodeId


class ServerPhase(Enum):
    GATHERING = "gathering"
    PLANNING = "planning"
    RUNNING = "running"
    CLOSING = "closing"  # no new work; one last evaluation
    STOPPED = "stopped"


_MOST_QUOTED = 1_000  # characters of a device's error in the reason why a run has ended
GATHER, REJOIN, TIME_LIMIT = "gather", "rejoin", "time limit"  # timers


class ServerCore:
    def __init__(self, method: Method, settings: ServerSettings) -> None:
        self._settings = settings
        self.training = Training(method, settings)
        self._phase = ServerPhase.GATHERING  # which does not know CLOSING: see phase
        self._timers: dict[str, float] = {}
        self._now = 0.0
        self._failing: dict[NodeId, None] = {}  # devices whose batches made a server step fail
        self.stopped = False

    @property
    def phase(self) -> ServerPhase:
        closing = self._phase is ServerPhase.RUNNING and self.progress.closing is not None
        return ServerPhase.CLOSING if closing else self._phase

    @property
    def progress(self) -> Progress:
        return self.training.progress

    @property
    def version(self) -> int:
        return self.training.models.version

    @property
    def _roster(self) -> Roster:
        return self.training.roster

    @property
    def sessions(self) -> Mapping[NodeId, int]:
        """The connected devices, and their session numbers."""
        return self._roster.sessions

    def leaving_order(self) -> list[tuple[NodeId, int]]:
        """Every session, in the order in which they end when all end at once.

        Devices whose updates wait at a barrier go first: it must not open for the remaining ones.
        """
        holds = self.training.aggregation.holds
        return sorted(self._roster.sessions.items(), key=lambda item: (not holds(item[0]), item[0]))

    @property
    def members(self) -> Mapping[NodeId, Member]:
        """The devices that have joined."""
        return self._roster.members

    @property
    def planned(self) -> bool:
        """There is a plan, and the run is not over."""
        return self._phase is ServerPhase.RUNNING

    @property
    def timers(self) -> Mapping[str, float]:
        """Those that have been set and have not fired yet, and when they are due."""
        return self._timers

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self._phase is ServerPhase.STOPPED and not isinstance(event, Extended):
            return self._turn_away(event)
        self._now = now
        effects = self._react(event)
        if self._phase is ServerPhase.RUNNING:
            progress = self.training.progress
            if progress.closing is None:
                effects += self.training.pump(now)
                effects += self._arm_timers()
            if progress.closing is not None:
                effects += self._close_when_idle()
        return effects

    def _react(self, event: Event) -> list[Effect]:
        match event:  # the most frequent first
            case JobDone():
                begun = self._begin() if isinstance(event.job, PlanRun) else []
                return begun + self.training.job_done(event, self._now) + self._drop_faulty(event)
            case Received(device, session, message):
                current = self.training.roster.is_current(device, session)
                return self._receive(device, message) if current else []
            case Connected(device, session):
                gone = self._remove(device) if device in self._roster.sessions else []
                self._roster.sessions[device] = session
                return gone
            case Disconnected(device, session):
                return self._remove(device) if self._roster.is_current(device, session) else []
            case Rejected(device, session, error, diverged):
                current = self._roster.is_current(device, session)
                return self._rejected(device, error, diverged) if current else []
            case Restarted():
                return self._wait_for_all()
            case JobFailed():
                return self._job_failed(event)
            case EvaluationFailed(_, error):
                return self._finish(error, failed=True)
            case Evaluated(index, metrics):
                self.progress.answered(index, dict(metrics))
                return []
            case TimerFired(key):
                return self._timer_fired(key)
            case Extended(rule):
                return self._extend(rule)
            case Ended(reason):
                return self.progress.end(reason)
        raise InvariantBroken(f"a server cannot handle {event}")

    # ---- devices -----------------------------------------------------------------------------

    def _receive(self, device: NodeId, message: Message) -> list[Effect]:
        if isinstance(message, Join):
            return self._join(device, message)
        member = self.training.roster.members.get(device)
        if member is None and isinstance(message, Failed):  # it could not even begin
            return [Note(NoteKind.DEVICE_FAILED, device, message.error), *self._remove(device)]
        if self.phase is ServerPhase.CLOSING:
            return []  # messages that still arrive are not used any more
        if member is None:
            raise ProtocolViolation(f"{device} spoke before joining")
        if self._phase is not ServerPhase.RUNNING:
            return self._receive_early(device, member, message)
        return self._receive_in_training(device, member, message)

    def _receive_in_training(
        self, device: NodeId, member: Member, message: Message
    ) -> list[Effect]:
        match message:
            case ActivationBatch():
                return self.training.take_activations(device, message, self._now)
            case ModelUpdate():
                self.training.take_update(device, member, message)
                return []
            case Failed(error, diverged):
                note = Note(NoteKind.DEVICE_FAILED, device, error)
                if self._ends_the_run(diverged):
                    why = f"{device}: {quoted(error, _MOST_QUOTED)}"
                    return [note, *self._finish(why, failed=True)]
                return [note, *self._remove(device)]
        raise ProtocolViolation(f"a device does not send {type(message).__name__}")

    def _ends_the_run(self, diverged: bool) -> bool:
        return diverged and not self._settings.drop_diverged

    def _rejected(self, device: NodeId, error: str, diverged: bool) -> list[Effect]:
        if not self._ends_the_run(diverged):
            self.training.distrust(device)  # nothing else changes before it is dropped
            raise ProtocolViolation(error)
        note = Note(NoteKind.PEER_DROPPED, device, error)
        return [note, *self._finish(f"{device}: {error}", failed=True)]

    def _job_failed(self, event: JobFailed) -> list[Effect]:
        """A job on what one device sent: the others continue, whatever went wrong, unless it goes
        wrong with every device there has been. Any other job: the run ends."""
        device = source_of(event.job)
        if device is None:
            return self._finish(event.error, failed=True)
        self._failing[device] = None
        if self._ends_the_run(event.diverged) or len(self._failing) >= self._roster.known:
            return self._finish(f"{device}: {event.error}", failed=True)
        return [*self._drop(device, event.error), *self.training.job_failed(event, self._now)]

    def _drop_faulty(self, event: JobDone) -> list[Effect]:
        """Devices whose batches or updates would have made the model infinite."""
        effects: list[Effect] = []
        if isinstance(event.job, Merge):
            for number, why in faults(event.text).items():
                device = event.job.parts[number].device
                if self._ends_the_run(diverged=True):
                    return [*effects, *self._finish(f"{device}: {why}", failed=True)]
                effects += self._drop(device, why)
        return effects

    def _drop(self, device: NodeId, why: str) -> list[Effect]:
        if (session := self._roster.sessions.get(device)) is None:  # it has left already
            return []
        return [Note(NoteKind.PEER_DROPPED, device, why), Drop(device, session, why)]

    def _receive_early(self, device: NodeId, member: Member, message: Message) -> list[Effect]:
        """From a device of an earlier server process: this one has not started the run yet."""
        match message:
            case ModelUpdate():  # to be asked for when the run begins
                member.join = replace(member.join, training=False, pending=message.data.id)
            case Failed(error):
                return [Note(NoteKind.DEVICE_FAILED, device, error), *self._remove(device)]
        return []

    def _join(self, device: NodeId, join: Join) -> list[Effect]:
        check_figures(join)
        running = self.phase is ServerPhase.RUNNING
        known = self._roster.members.get(device)
        if known is not None:
            # Once, to say that it discarded the work it had: see DeviceCore._assign.
            if not (known.join.has_work or known.reassigned) or join.has_work:
                raise ProtocolViolation(f"{device} joined twice")
            known.join = join
            return self.training.welcome(device, known, self._now) if running else []
        if self.phase is ServerPhase.CLOSING:  # it is told the end with the others
            return []
        member = self._roster.add(device, join)
        if running:
            return self.training.admit(device, member, self._now)
        return self._plan_when_complete() if self._phase is ServerPhase.GATHERING else []

    def _remove(self, device: NodeId) -> list[Effect]:
        member = self._roster.remove(device)
        # Also while the run closes: when it is extended nothing may be left of who has gone.
        left = self.training.leave(device, member, self._now) if member and self.planned else []
        return left if self.phase is ServerPhase.RUNNING else []

    def _wait_for_all(self) -> list[Effect]:
        """With a barrier, until all devices from before a restart are back."""
        if self.phase is not ServerPhase.RUNNING or not self.training.expect_all_back():
            return []
        return self._timer_after(REJOIN, self._settings.patience, self._now)

    # ---- before the run ----------------------------------------------------------------------

    def _plan_when_complete(self) -> list[Effect]:
        settings = self._settings
        if len(self._roster.members) >= settings.devices:
            return self._begin_planning()
        if GATHER in self._timers:
            return []
        return self._timer_after(GATHER, settings.patience, self._now)

    def _begin_planning(self) -> list[Effect]:
        self._phase = ServerPhase.PLANNING
        return self.training.plan()

    def _begin(self) -> list[Effect]:
        self._phase = ServerPhase.RUNNING
        return self._timer_after(TIME_LIMIT, self._settings.stop.seconds, self._now)

    # ---- time --------------------------------------------------------------------------------

    def _set_timer(self, key: str, at: float) -> SetTimer:
        self._timers[key] = at
        return SetTimer(key, at)

    def _timer_after(self, key: str, seconds: float | None, began: float) -> list[Effect]:
        return [] if seconds is None else [self._set_timer(key, began + seconds)]

    def _arm_timers(self) -> list[Effect]:
        """One timer per policy, for its earliest deadline; set again if it fires too early."""
        effects: list[Effect] = []
        for key, deadline in self.training.deadlines.items():
            if deadline is not None and key not in self._timers:
                effects.append(self._set_timer(key, deadline))
        return effects

    def _timer_fired(self, key: str) -> list[Effect]:
        del self._timers[key]
        match key, self.phase:
            case "gather", ServerPhase.GATHERING:
                return self._begin_planning() if self._roster.members else []
            case "time limit", ServerPhase.RUNNING:
                self.progress.closing = f"{self._settings.stop.seconds:g} seconds are over"
            case (("credit" | "barrier" | "rejoin"), ServerPhase.RUNNING):
                return self.training.wake(key, self._now)
        return []

    # ---- the end -----------------------------------------------------------------------------

    def _close_when_idle(self) -> list[Effect]:
        progress = self.progress
        if not self.training.slot.free or progress.waiting:
            return []
        if progress.weights_changed:
            return [progress.evaluate(self.version)]
        return self._finish(progress.closing or "", failed=progress.failed)

    def _extend(self, rule: StopRule) -> list[Effect]:
        """After its end a run goes on as a server that was restarted: devices come back."""
        self._settings = replace(self._settings, stop=rule)
        began = self.progress.extend(rule)
        if self.stopped:
            self._phase, self.stopped = ServerPhase.RUNNING, False
        return self._timer_after(TIME_LIMIT, rule.seconds, began) if self.planned else []

    def _finish(self, reason: str, *, failed: bool = False) -> list[Effect]:
        self._phase = ServerPhase.STOPPED
        self.stopped = True
        farewell = [self._roster.send(device, Stop(reason)) for device in self._roster.sessions]
        return [*farewell, Halt(reason, failed)]

    def _turn_away(self, event: Event) -> list[Effect]:
        if isinstance(event, Received) and isinstance(event.message, Join):  # it would wait forever
            return [Send(event.sender, event.session, Stop("the run is over"))]
        return []

    # ---- invariants --------------------------------------------------------------------------

    def check(self) -> None:
        self.training.check()
        if self.phase is ServerPhase.RUNNING and self.training.has_overlooked_work:
            raise InvariantBroken("the engine is idle although there is work")
        if self.stopped != (self._phase is ServerPhase.STOPPED):
            raise InvariantBroken(f"stopped is {self.stopped} in phase {self._phase.value}")
