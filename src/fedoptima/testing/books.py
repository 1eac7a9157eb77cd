"""The laws that can be read off a server's events and effects, kept in books of one's own.

The server is asked only for its counters, which are then compared with the books. A restored server
goes back in time, and its books go back with it (`Books.copy`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Any

from fedoptima.core.aggregation import Buffered
from fedoptima.core.barrier import Barrier
from fedoptima.core.effects import Drop, Effect, Evaluate, Halt, Note, NoteKind, Run, Send, SetTimer
from fedoptima.core.events import Connected, Disconnected, Event, JobDone, Received, Restarted
from fedoptima.core.jobs import Merge, PlanRun, ReusedStep, ServerStep
from fedoptima.core.messages import (
    ActivationBatch,
    Failed,
    GlobalModel,
    Join,
    Message,
    ModelUpdate,
    Stop,
    TurnOn,
)
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.robust import merged_parts
from fedoptima.core.server import REJOIN, ServerCore, ServerPhase
from fedoptima.core.shares import Shares
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.testing.credit_book import CreditBook
from fedoptima.testing.law_broken import LawBroken
from fedoptima.testing.reuse_book import ReuseBook
from fedoptima.testing.sum_book import SumBook


def running(server: ServerCore) -> bool:
    return server.phase is ServerPhase.RUNNING


def _drops(effect: Effect, device: NodeId) -> bool:
    """The device broke the protocol, so its message changed nothing."""
    dropped = (NoteKind.PEER_DROPPED, device)
    return isinstance(effect, Note) and (effect.kind, effect.about) == dropped


class Books:
    def __init__(self, method: Method) -> None:
        policy = method.aggregation()
        self._credits = CreditBook(method.flow())
        self._reuse = ReuseBook(method.reuse())
        self._sum = SumBook()
        # Of a user's policy only what every method must do is known, not how it decides.
        self._ours = type(policy).__module__.startswith("fedoptima.core.")
        self._barrier = type(policy) is Barrier
        self._closes_round = policy.closes_round
        self._at_once = self._ours and not policy.closes_round  # is everybody answered
        self._plain = method.robust == "none"  # what is merged is known when it is ordered
        # Behind a barrier a refused device is answered when the next round begins, or the next
        # one that it is drawn for.
        drawn = getattr(policy, "participation", 1.0) < 1
        self._may_wait = math.inf if drawn else int(policy.closes_round)
        delay = getattr(policy, "delay", None)
        limited = self._barrier or (self._ours and not getattr(delay, "while_away", True))
        self._max_delay = policy.max_delay if limited else None
        self._was_running = False
        self._restored = False  # and is being told which connections it has lost
        self.version = 0
        self.epochs = 0.0
        # With copies on the server a pooled update is answered when that has been renewed.
        late = method.training is ServerTraining.PER_DEVICE and isinstance(policy, Buffered)
        self._exact = self._plain and self._ours and not late
        self._changed = False  # the weights, since the last evaluation
        self._model: PayloadId | None = None
        self._shares = Shares()
        self._samples: dict[NodeId, int] = {}
        self._sizes: set[int] = set()  # all numbers of samples there have been
        self._sessions: dict[NodeId, int] = {}
        self._open: dict[NodeId, ModelUpdate] = {}  # handed in, not decided on
        self._awaiting: dict[NodeId, None] = {}  # a model: handed in, or new
        self._pooled: dict[PayloadId, ModelUpdate] = {}  # accepted, to be merged with others
        self._kept: dict[PayloadId, ModelUpdate] = {}  # its device has left, and it counts
        self._merged: dict[PayloadId, None] = {}
        self._trained_on: dict[PayloadId, None] = {}
        self._refused: dict[NodeId, int] = {}  # not answered yet: at which version
        self._owing: dict[NodeId, int] = {}  # has a model, of this version, and no update followed
        self._late: dict[NodeId, None] = {}  # not waited for any longer
        self._scaled: dict[NodeId, float] = {}
        # In the round when the server was restarted, and not back yet.
        self._expected: dict[NodeId, None] = {}
        self._expected_until = math.inf
        self.models: dict[NodeId, int] = {}  # sent, merged and trained on since `count_anew`
        self.merges: dict[NodeId, int] = {}
        self.steps: dict[NodeId, int] = {}

    def copy(self) -> Books:
        other = object.__new__(Books)
        for name, value in vars(self).items():
            vars(other)[name] = value.copy() if hasattr(value, "copy") else value
        other._shares = copy(self._shares)
        for name, value in vars(self._shares).items():
            vars(other._shares)[name] = copy(value)
        return other

    @property
    def peak(self) -> int:
        """Batches held at once."""
        return self._credits.peak

    def count_anew(self) -> None:
        self.models, self.merges, self.steps = {}, {}, {}

    # ---- one event ---------------------------------------------------------------------------

    def see(self, at: float, event: Event, effects: Sequence[Effect], server: ServerCore) -> None:
        self._event(event, effects)
        self._sum.see(effects)
        self._restored = isinstance(event, Restarted) or (
            self._restored and isinstance(event, Disconnected)
        )
        if self._expected and at >= self._expected_until:
            self._expected.clear()
        now_running = running(server)
        for effect in effects:
            match effect:
                case Send(device, session, message):
                    dead = self._sessions.get(device) != session
                    if dead and not isinstance(message, Stop):  # who comes late is told so
                        raise LawBroken("sessions", f"sent to a dead session of {device}: {effect}")
                    self._sent(at, device, message)
                case Run(_, ReusedStep() as step):
                    self._step_again(step)
                case Run(_, ServerStep() as step):
                    self._step(step)
                case Run(_, Merge() as merge):
                    self._merge(merge)
                case Note():
                    self._note(effect)
                case Drop(device):
                    self._awaiting.pop(device, None)
                case Evaluate():
                    self._changed = False
                case Halt(_, failed):
                    self._end(effects, failed=failed)
        if now_running:
            self._check(at, server)
        self._was_running = now_running

    def _event(self, event: Event, effects: Sequence[Effect]) -> None:
        self._reuse.see(event, self.version, self._sessions)
        for effect in effects:
            match effect:
                case Note(NoteKind.UPDATE_KEPT, device) if device in self._open:
                    self._kept[self._open[device].data.id] = self._open[device]
                    if self._sum.holds(self._open[device].data.id):
                        self._expected.pop(device, None)  # a restart does not undo that
        match event:
            case Received(device, session, message):
                if self._sessions.get(device) != session:
                    if effects and not isinstance(message, Join):
                        raise LawBroken("sessions", f"acted on what a dead session said: {event}")
                elif not any(_drops(effect, device) for effect in effects):
                    self._received(device, message, effects)
            case JobDone(_, job, result):
                match job:
                    case Merge():
                        if merged_parts(event):
                            self.version += 1
                            self._model = result.id
                        self._changed = True
                    case PlanRun():
                        self._model = result.id
                        self._changed = True
                    case ServerStep():
                        self._changed = True
            case Restarted() if self._barrier and self._was_running:
                members = (d for d, version in self._owing.items() if version == self.version)
                waited_for = [d for d in (*members, *self._open) if d not in self._late]
                self._expected.update(dict.fromkeys(waited_for))
                timers = [e.at for e in effects if isinstance(e, SetTimer) and e.key == REJOIN]
                self._expected_until = min(timers, default=math.inf)
            case Connected(device, session):
                self._forget(device)
                self._sessions[device] = session
            case Disconnected(device, session):
                if self._sessions.get(device) == session:
                    self._forget(device)
                elif effects:
                    raise LawBroken("sessions", f"acted on the end of a dead session: {event}")

    def _received(self, device: NodeId, message: Message, effects: Sequence[Effect]) -> None:
        match message:
            case Join(samples=samples):
                if not message.has_work:
                    self._awaiting[device] = None
                self._shares.add(device, samples)
                self._samples[device] = samples
                self._sizes.add(samples)
                self._expected.pop(device, None)
            case Failed():
                self._forget(device)
            case ActivationBatch() if self._was_running:
                notes = [effect.kind for effect in effects if isinstance(effect, Note)]
                self._credits.came(device, kept=NoteKind.LATE_BATCH_DROPPED not in notes)
            case ModelUpdate() if self._was_running:
                self._owing.pop(device, None)
                self._open[device] = message
                self._awaiting[device] = None

    def _forget(self, device: NodeId) -> None:
        self._shares.remove(device)
        if not self._ours and (update := self._open.get(device)) is not None:
            self._pooled[update.data.id] = update  # it may keep what a device has handed in
        books: tuple[dict[NodeId, Any], ...] = (
            *(self._samples, self._sessions, self._open, self._awaiting),
            *(self._refused, self._owing, self._late, self._scaled),
        )
        self._credits.forget(device)
        self._reuse.left(device)
        for book in books:
            book.pop(device, None)

    # ---- effects -----------------------------------------------------------------------------

    def _sent(self, at: float, device: NodeId, message: object) -> None:
        match message:
            case TurnOn():
                self._credits.turned_on(device, at)
            case GlobalModel(version, _, data):
                if device in self._owing:
                    raise LawBroken("answers", f"{device} was sent two models")
                if (version, data.id) != (self.version, self._model):
                    newest = f"the newest is {self._model} of version {self.version}"
                    raise LawBroken("counters", f"{device} was sent {message}, but {newest}")
                if (update := self._open.pop(device, None)) is not None:
                    self._accepted(device, update)
                    self._pooled[update.data.id] = update
                self._awaiting.pop(device, None)
                self._owing[device] = version
                self._refused.pop(device, None)
                self._late.pop(device, None)
                self.models[device] = self.models.get(device, 0) + 1

    def _step(self, step: ServerStep) -> None:
        self._check_answered()
        device = step.origin
        if self._sessions.get(device) != step.session:
            raise LawBroken("sessions", f"trained on a batch of a dead session: {step}")
        if step.data.id in self._trained_on:
            raise LawBroken("exactly once", f"trained twice on {step.data.id}")
        self._trained_on[step.data.id] = None
        self._credits.used(device)
        self.steps[device] = self.steps.get(device, 0) + 1

    def _step_again(self, step: ReusedStep) -> None:
        self._check_answered()
        waiting = self._credits.held + (len(self._open) if self._at_once else 0)
        self._reuse.used_again(step, self.version, waiting)

    def _merge(self, merge: Merge) -> None:
        self._check_answered()
        if self._barrier:
            early = [d for d, v in self._owing.items() if v == self.version and d not in self._late]
            if early:
                raise LawBroken("barrier", f"a round was merged without waiting for {early}")
            if self._expected:
                text = f"merged after a restart before {list(self._expected)} were back"
                raise LawBroken("barrier", text)
        for part in merge.parts:
            device, identity = part.device, part.data.id
            if identity in self._merged:
                raise LawBroken("exactly once", f"{identity} was merged twice")
            self._merged[identity] = None
            self._check_staleness(device, self._taken(device, identity))
            self.merges[device] = self.merges.get(device, 0) + 1

    def _taken(self, device: NodeId, identity: PayloadId) -> ModelUpdate:
        """The update that is merged."""
        if (pooled := self._pooled.pop(identity, None)) is not None:
            return pooled
        update, here = self._kept.pop(identity, None), self._open.get(device)
        if here is not None and here.data.id == identity:
            update = self._open.pop(device)
        if update is None:
            raise LawBroken("exactly once", f"merged {identity}, which nobody has here")
        self._accepted(device, update)
        return update

    def _check_staleness(self, device: NodeId, update: ModelUpdate) -> None:
        behind = self.version - update.version
        if behind < 0:
            raise LawBroken("staleness", f"merged {device}'s update of a history that is gone")
        # Else ages are counted in shares, also those of merges of devices that have left since.
        alike = len(self._sizes) <= 1
        most = self._max_delay
        if most is not None and behind > most and alike:
            text = f"{device}'s update was {behind} versions behind, {most} are allowed"
            raise LawBroken("staleness", text)

    def _accepted(self, device: NodeId, update: ModelUpdate) -> None:
        self.epochs += self._shares.epochs(device, update.processed) * self._scaled.pop(device, 1.0)

    def _note(self, note: Note) -> None:
        device = note.about
        match note.kind:
            case NoteKind.UPDATE_REFUSED:
                self._open.pop(device, None)
                if device in self._sessions:  # else it is answered when it is back
                    self._refused[device] = self.version
            case NoteKind.UPDATE_SCALED:
                self._scaled[device] = float(note.text)
            case NoteKind.NOT_WAITED_FOR:
                self._late[device] = None

    def _end(self, effects: Sequence[Effect], *, failed: bool) -> None:
        if self._changed and not failed:
            raise LawBroken("evaluation", "the run ended without measuring its last model")
        told = {e.to for e in effects if isinstance(e, Send) and isinstance(e.message, Stop)}
        if untold := sorted(self._sessions.keys() - told):
            raise LawBroken("answers", f"the run ended, which {untold} were not told")

    # ---- after the event ---------------------------------------------------------------------

    def _check(self, at: float, server: ServerCore) -> None:
        self._credits.check(at)
        if not self._restored:
            self._credits.check_nobody_waits(at, self._samples)
        if self._awaiting and self._at_once and server.training.slot.free:
            text = f"the engine is idle, and {list(self._awaiting)} wait for an answer"
            raise LawBroken("answers", text)
        self._reuse.check(self.version, server.training.reuse, idle=server.training.slot.free)
        scheduled, progress = server.training.scheduler.buffered, server.progress
        if scheduled != (held := self._credits.held):
            raise LawBroken("counters", f"{scheduled} batches are counted, {held} have come")
        if server.version != self.version:
            raise LawBroken("counters", f"version {server.version} after {self.version} merges")
        if self._exact and not math.isclose(
            progress.epochs, self.epochs, rel_tol=1e-6, abs_tol=1e-9
        ):
            raise LawBroken("counters", f"{progress.epochs} epochs counted for {self.epochs}")
        if self._closes_round and self._plain and progress.rounds != self.version:
            raise LawBroken("counters", f"{progress.rounds} rounds after {self.version} merges")

    def _check_answered(self) -> None:
        late = [d for d, at in self._refused.items() if self.version - at >= self._may_wait]
        if late:
            raise LawBroken("answers", f"others go on before {late} are answered")
