"""The device (paper Alg. 1): join, train H iterations, hand in, load the new model, repeat.

A device outlives its connection. A program that needs no gradient finishes its round offline and
hands in with the version it began with; an update counts as pending until the server answers
it with a model. A program that needs gradients abandons its round when the connection is lost.

With ``overlap`` a device begins its next round while its update is pending; when the answer comes,
it carries over onto it what it has learned since (docs/decisions/0038). It never has two
updates pending: at the end of that round it waits, if the answer has not come by then.
"""

from __future__ import annotations

from enum import Enum

from fedoptima.core.effects import Effect, Halt, Send
from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.events import (
    Connected,
    Disconnected,
    Event,
    FailedLate,
    JobDone,
    JobFailed,
    Measured,
    Received,
    Rejected,
)
from fedoptima.core.job_slot import JobSlot
from fedoptima.core.jobs import ExportModel, LoadModel, Prepare, Rebase, SkipStep
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
    ToServer,
    TurnOn,
)
from fedoptima.core.programs import Order, Program, build_program
from fedoptima.core.types import SERVER, PayloadId


class DevicePhase(Enum):
    IDLE = "idle"  # has nothing to do until a model comes
    LOADING = "loading"
    TRAINING = "training"
    EXPORTING = "exporting"
    PENDING = "pending"  # has handed in, or would if it were connected


class DeviceCore:
    _forwarded = 0  # these are here, because checkpoints of earlier versions do not have them
    _held: tuple[Order, ...] = ()
    _seconds = _link = 0.0

    def __init__(
        self,
        *,
        samples: int,
        flops_per_second: float,
        bytes_per_second: float,
        incarnation: int = 0,
        step: int = 0,
    ) -> None:
        self._samples = samples
        self._flops_per_second = flops_per_second
        self._bytes_per_second = bytes_per_second
        self.incarnation = incarnation
        self._first_step = step
        self._phase = DevicePhase.IDLE
        self._session: int | None = None
        self._assignment: Assignment | None = None
        self._program: Program | None = None
        self._prepared = False
        self._incoming: GlobalModel | None = None
        self._pending: ModelUpdate | None = None
        self._sender_on = False
        self._version = -1  # t_k
        self._trained = 0  # samples
        self._forwarded = 0  # and not trained on
        self._held = ()  # what comes after the rebasing that is under way
        # Where devices have cuts of their own: the time that it has computed for its next update,
        # and what its uplink carries, if that was measured.
        self._seconds = self._link = 0.0
        self._slot = JobSlot()
        self.stopped = False

    @property
    def step(self) -> int:
        """The next iteration's number: all that has to outlive the device's process."""
        return self._program.step if self._program else self._first_step

    @property
    def cut(self) -> int:
        """Its own; 0: it has the one that all have."""
        return self._assignment.program.cut if self._assignment else 0

    @property
    def prepared(self) -> bool:
        """For the plan that it is assigned."""
        return self._prepared

    def restarted(self) -> DeviceCore:
        """This device as it is after its process was restarted."""
        return DeviceCore(
            samples=self._samples,
            flops_per_second=self._flops_per_second,
            bytes_per_second=self._link or self._bytes_per_second,
            incarnation=self.incarnation + 1,
            step=self.step,
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self.stopped and not isinstance(event, FailedLate):
            return []
        match event:  # the most frequent first
            case JobDone():
                return self._job_done(event)
            case Received(_, session, message):
                return self._receive(message) if session == self._session else []
            case Connected(_, session):
                return self._join(session)
            case Disconnected(_, session):
                return self._disconnect() if session == self._session else []
            case Rejected(_, session, error):
                if session == self._session:
                    raise ProtocolViolation(error)
                return []
            case Measured(seconds, carried):
                self._seconds, self._link = seconds, carried or self._link
                return []
            case JobFailed(error=error, diverged=diverged) | FailedLate(error, diverged):
                return [*self._send(Failed(error, diverged)), *self._stop(error, failed=True)]
            case _:  # the server's own
                raise InvariantBroken(f"a device cannot handle {event}")

    # ---- connection --------------------------------------------------------------------------

    def _join(self, session: int) -> list[Effect]:
        if self._session is not None:  # the new connection is the first sign that the old one died
            self._disconnect()
        self._session = session
        return self._send(self._introduction())

    def _introduction(self) -> Join:
        return Join(
            self.incarnation,
            self._samples,
            self._flops_per_second,
            self._link or self._bytes_per_second,
            self._version,
            self._phase not in (DevicePhase.IDLE, DevicePhase.PENDING),
            self._pending.data.id if self._pending else None,
            self.step,
            self.cut,
        )

    def _disconnect(self) -> list[Effect]:
        self._session = None
        self._sender_on = False
        if self._phase is DevicePhase.LOADING and self._incoming is not None:
            # Results of a dead session are ignored.
            self._phase, self._incoming = DevicePhase.IDLE, None
        if self._program is not None and self._program.needs_gradient:
            self._abandon()
        return []

    def _abandon(self) -> None:
        """Abandon the round. The current iteration is not repeated: its data has been used."""
        if self._assignment is not None:
            step = self.step + (self._phase is DevicePhase.TRAINING)
            self._program = build_program(self._assignment.program, step)
        self._phase = DevicePhase.IDLE
        self._incoming = self._pending = None
        self._held = ()
        self._trained = self._forwarded = 0
        self._seconds = 0.0

    def let_go(self, identity: PayloadId) -> None:
        """Keep the pending update's name alone: in a simulation its tensors are the server's, too,
        which has used them and never asks for them again."""
        if self._pending is not None and self._pending.data.id == identity:
            self._pending = self._pending.without_tensors()

    # ---- messages ----------------------------------------------------------------------------

    def _receive(self, message: Message) -> list[Effect]:
        match message:
            case Assignment():
                return self._assign(message)
            case TurnOn():
                kept = self._program.kept() if self._program else None
                self._sender_on = kept is None
                return [] if kept is None else self._send(kept)
            case HandIn():
                # Without one, it was discarded for a new assignment; the server is being notified.
                return [] if self._pending is None else self._send(self._pending)
            case GlobalModel():
                answers = self._phase is DevicePhase.TRAINING and self._pending is not None
                if not answers and self._phase not in (DevicePhase.IDLE, DevicePhase.PENDING):
                    raise ProtocolViolation(f"the server sent a model while {self._phase.value}")
                self._pending = None
                self._incoming = message
                if answers:  # in the middle of an iteration it has to wait
                    return self._rebase([]) if self._slot.free else []
                self._phase = DevicePhase.LOADING
                return self._pump()
            case GradientBatch():
                if self._phase is not DevicePhase.TRAINING or self._program is None:
                    raise ProtocolViolation("the server sent a gradient outside a round")
                return self._carry_out(self._program.gradient(message))
            case Stop(reason):
                return self._stop(reason)
        raise ProtocolViolation(f"a server does not send {type(message).__name__}")

    def _assign(self, assignment: Assignment) -> list[Effect]:
        if assignment == self._assignment:  # back in the same run: continue as before
            return []
        build_program(assignment.program, self.step)  # may refuse, so it goes first
        had_work = self._phase is not DevicePhase.IDLE
        self._assignment = assignment
        self._prepared = False
        self._abandon()
        # The server expects work that this device has just discarded: report the state again.
        again = self._send(self._introduction()) if had_work else []
        return again + self._pump()

    # ---- work --------------------------------------------------------------------------------

    def _job_done(self, event: JobDone) -> list[Effect]:
        self._slot.done(event.ticket)
        if self._phase is DevicePhase.TRAINING and self._program is not None:
            if isinstance(event.job, Rebase):
                held, self._held = self._held, ()
                return self._carry_out([*held])
            if isinstance(event.job, SkipStep):
                self._forwarded += event.samples
            else:
                self._trained += event.samples
            step = self._program.step
            orders = self._program.done(event.job, event.result, sender_on=self._sender_on)
            between_iterations = self._program.step != step
            if self._incoming is not None and between_iterations:
                return self._rebase(orders)
            return self._carry_out(orders)
        match event.job:
            case Prepare(plan):
                self._prepared = self._assignment is not None and plan == self._assignment.plan
            case LoadModel() if self._phase is DevicePhase.LOADING and self._incoming is None:
                return self._begin_round()
            case ExportModel(keep=keep) if self._phase is DevicePhase.EXPORTING:
                self._phase = DevicePhase.PENDING
                self._pending = ModelUpdate(
                    *(self._version, self._trained, event.result, self._forwarded),
                    *(self.cut, self._seconds, self._link),
                )
                self._trained, self._forwarded, self._seconds = 0, 0, 0.0
                handed_in = self._send(self._pending)
                return [*handed_in, *self._begin_round()] if keep else handed_in
        return self._pump()  # what is left is the last job of an abandoned round

    def _begin_round(self) -> list[Effect]:
        program, assignment = self._in_force()
        self._phase = DevicePhase.TRAINING
        return self._carry_out(program.start(assignment.iterations))

    def _rebase(self, orders: list[Order]) -> list[Effect]:
        """On the model that has come; ``orders`` are carried out afterwards."""
        model, self._incoming = self._incoming, None
        if model is None:
            raise InvariantBroken("there is no model to rebase on")
        self._version = model.version
        self._held = tuple(orders)
        return [self._slot.run(Rebase(model.data, model.progress))]

    def _carry_out(self, orders: list[Order]) -> list[Effect]:
        effects: list[Effect] = []
        for order in orders:
            if isinstance(order, ActivationBatch):
                self._sender_on = False
                effects += self._send(order)
            else:
                effects.append(self._slot.run(order))
        program, assignment = self._in_force()
        if program.finished and self._slot.free and self._pending is None:
            self._phase = DevicePhase.EXPORTING
            spec = assignment.program
            effects.append(self._slot.run(ExportModel(spec.delta, spec.overlap)))
        return effects

    def _in_force(self) -> tuple[Program, Assignment]:
        if self._program is None or self._assignment is None:
            raise InvariantBroken("a device works without an assignment")
        return self._program, self._assignment

    def _pump(self) -> list[Effect]:
        """Give the idle engine what is due outside a round."""
        if not self._slot.free or self._assignment is None:
            return []
        if not self._prepared:
            return [self._slot.run(Prepare(self._assignment.plan))]
        if self._incoming is None:
            return []
        model, self._incoming = self._incoming, None
        self._version = model.version
        return [self._slot.run(LoadModel(model.data, model.progress))]

    def _send(self, message: ToServer) -> list[Effect]:
        return [] if self._session is None else [Send(SERVER, self._session, message)]

    def _stop(self, reason: str, *, failed: bool = False) -> list[Effect]:
        self.stopped = True
        return [Halt(reason, failed)]

    # ---- invariants --------------------------------------------------------------------------

    def check(self) -> None:
        overlaps = self._assignment is not None and self._assignment.program.overlap
        trains_on = overlaps and self._phase is DevicePhase.TRAINING
        pending = self._pending is not None
        if pending != (self._phase is DevicePhase.PENDING) and not (pending and trains_on):
            raise InvariantBroken(f"pending update in phase {self._phase.value}")
        if self._incoming is not None and not (trains_on or self._phase is DevicePhase.LOADING):
            raise InvariantBroken(f"a model waits to be loaded in phase {self._phase.value}")
        if self._sender_on and self._session is None:
            raise InvariantBroken("the Sender is on without a connection")
