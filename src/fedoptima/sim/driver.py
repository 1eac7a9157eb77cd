"""Drives the cores on a virtual clock (the driver contract is in docs/architecture.md).

A job is given to the executor when its result is due, not when it is ordered: an engine's state
changes only through its own jobs, so the result is the same, and a job of a dead process is never
computed. What the cores need of the result is there at once; its values may come later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedoptima.core.effects import Drop, Effect, Evaluate, Fold, Halt, Note, Run, Send, SetTimer
from fedoptima.core.errors import InvariantBroken, ProtocolViolation, TrainingDiverged
from fedoptima.core.events import (
    Connected,
    Disconnected,
    Evaluated,
    EvaluationFailed,
    Event,
    FailedLate,
    Received,
    Rejected,
    TimerFired,
)
from fedoptima.core.jobs import AddUp, Job
from fedoptima.core.machine import broke_the_protocol, job_failed, rejected
from fedoptima.core.messages import Failed
from fedoptima.core.server import ServerCore
from fedoptima.core.types import SERVER, NodeId, payload_id
from fedoptima.sim import delivery
from fedoptima.sim.admission import Admission
from fedoptima.sim.costs import CostModel
from fedoptima.sim.executor import Executor, raise_if_not_of_the_node
from fedoptima.sim.faults import Change, Churn
from fedoptima.sim.network import Envelope
from fedoptima.sim.stall import stalled
from fedoptima.sim.state import (
    ChurnDue,
    DropDue,
    EnvelopeArrives,
    EnvelopePassed,
    EnvelopeSent,
    EvaluationDue,
    FaultDue,
    JobDue,
    SimDevice,
    SimServer,
    SimState,
    TimerDue,
)
from fedoptima.trace.record import Record, RecordObserver


class Simulation:
    def __init__(
        self,
        server: ServerCore,
        devices: Mapping[NodeId, SimDevice],
        *,
        executor: Executor,
        costs: CostModel,
        changes: Sequence[Change] = (),
        churn: Churn | None = None,
        late: Mapping[NodeId, float] | None = None,
        observers: Sequence[RecordObserver] = (),
    ) -> None:
        self.state = SimState(SimServer(server), dict(devices))
        self.outcome: Halt | None = None
        self.failure: Exception | None = None  # what the server's job raised
        self._churn = churn
        self._executor = executor
        self.admission = Admission(executor)
        self._costs = costs
        self._observers = tuple(observers)
        for name, device in self.devices.items():
            joins = (late or {}).get(name, 0.0)
            device.present = False
            self._at(joins, Change(joins, name, "return"))
        for change in sorted(changes, key=lambda change: change.at):
            self._at(change.at, change)
        if churn is not None:
            self._at(churn.every, ChurnDue(1))

    @property
    def now(self) -> float:
        return self.state.kernel.now

    @property
    def server(self) -> SimServer:
        return self.state.server

    @property
    def devices(self) -> Mapping[NodeId, SimDevice]:
        return self.state.devices

    @property
    def events(self) -> int:
        return self.state.events

    def settle(self) -> None:
        """Wait for the values of all results, as a checkpoint needs them."""
        self._executor.settle()

    def _at(self, time: float, item: object) -> None:
        self.state.kernel.at(time, item)

    def run(self, pause: Callable[[], bool] = lambda: False) -> Halt | None:
        """Run until the server halts or ``pause``, called after every event, returns True."""
        while self.outcome is None:
            item = self.state.kernel.pop()
            if item is None:
                raise stalled(self.devices)
            self._dispatch(item)
            if pause():
                break
        return self.outcome

    def tell_server(self, event: Event) -> None:  # what its operator wants
        self._tell(SERVER, event)

    def _dispatch(self, item: object) -> None:
        match item:  # the most frequent first, without taking it apart: runs have millions
            case JobDue():
                self._finish_job(item)
            case EnvelopeSent():
                self._deliver(delivery.sent(self.state, item))
            case EnvelopeArrives():
                self._deliver(item)
            case EnvelopePassed():
                self._deliver(delivery.passed(self.state, item))
            case TimerDue(key, number):
                if self.server.timers.get(key) == number:
                    del self.server.timers[key]
                    self._tell(SERVER, TimerFired(key))
            case EvaluationDue(index, metrics, error):
                failed = EvaluationFailed(index, error)
                self._tell(SERVER, failed if error else Evaluated(index, metrics))
            case FaultDue(event):
                self._tell(SERVER, event)
            case DropDue(peer, session, reason):
                if self.devices[peer].connected and self.devices[peer].session == session:
                    self._drop_peer(SERVER, peer, reason)
            case Change() as change:
                self.apply(change)
            case ChurnDue(tick):
                self._churn_due(tick)

    # ---- cores -------------------------------------------------------------------------------

    def _tell(self, node: NodeId, event: Event) -> None:
        state = self.state
        machine = state.server.machine if node == SERVER else state.devices[node].machine
        try:
            effects = machine.handle(event, state.kernel.now)
        except ProtocolViolation as error:
            if not isinstance(event, Received | Rejected):
                raise
            self._record(node, event, [broke_the_protocol(event.sender, error)])
            self._drop_peer(node, event.sender, str(error))
            return
        self._record(node, event, effects)
        for effect in effects:
            self._perform(node, effect)

    def _record(self, node: NodeId, event: Event, effects: list[Effect]) -> None:
        state = self.state
        state.events += 1
        record = Record(state.kernel.now, node, event, effects)
        for observe in self._observers:
            observe(record)

    def _perform(self, node: NodeId, effect: Effect) -> None:
        match effect:  # the most frequent first, as in `_dispatch`
            case Run():
                self._start_job(node, effect.ticket, effect.job)
            case Send():
                self._send(node, effect)
            case Fold(part):
                self._executor.execute(SERVER, AddUp(part), part.data.id)
                self.devices[part.device].machine.let_go(part.data.id)
            case Evaluate(index=index):
                for device, fault in self._executor.faults().items():
                    session = self.devices[device].session
                    self._at(self.now, FaultDue(rejected(device, session, fault)))
                self._at(self.now, self._evaluate(index))
            case SetTimer(key, at):
                self.state.timer_number += 1
                self.server.timers[key] = number = self.state.timer_number
                self._at(max(at, self.now), TimerDue(key, number))
            case Drop(peer, session, reason):  # later: the core is not called back at once
                self._at(self.now, DropDue(peer, session, reason))
            case Halt() if node == SERVER:
                self.outcome = effect
            case Halt(reason):
                self._end_process(node, reason)
            case Note():
                pass

    def _send(self, node: NodeId, send: Send) -> None:
        upward = send.to == SERVER
        device = node if upward else send.to
        envelope = Envelope(send.message, send.session)
        if delivery.post(self.state, device, upward, envelope) and upward:
            self.admission.sent(device, send.message)

    def _evaluate(self, index: int) -> EvaluationDue:
        try:
            return EvaluationDue(index, self._executor.evaluate())
        except TrainingDiverged as error:
            return EvaluationDue(index, (), str(error))

    # ---- jobs --------------------------------------------------------------------------------

    def _start_job(self, node: NodeId, ticket: int, job: Job) -> None:
        state, incarnation = self.state, 0
        if node == SERVER:
            state.server.job = (ticket, job)
        else:
            owner = state.devices[node]
            owner.job = (ticket, job)
            incarnation = owner.machine.incarnation
        due = state.kernel.now + self._costs.seconds(node, job)
        state.kernel.at(due, JobDue(node, incarnation, ticket))

    def _finish_job(self, due: JobDue) -> None:
        node, incarnation, ticket = due.node, due.incarnation, due.ticket
        owner: SimServer | SimDevice
        if node == SERVER:
            owner = self.state.server
        else:
            owner = self.state.devices[node]
            if owner.hung or not owner.present or owner.machine.incarnation != incarnation:
                return
        running, owner.job = owner.job, None
        if running is None or running[0] != ticket:
            raise InvariantBroken(f"{node}: job {ticket} is due but not running")
        job = running[1]
        try:
            outcome = self._executor.execute(node, job, payload_id(node, incarnation, ticket))
        except Exception as error:  # any error ends this node's work, and not that of others
            raise_if_not_of_the_node(error)
            if node == SERVER:
                self.failure = error
            self._tell(node, job_failed(ticket, job, error))
            return
        if isinstance(owner, SimDevice) and owner.machine.cut:
            measured = owner.measure(job, self._costs.seconds(node, job))
            if measured is not None:
                self._tell(node, measured)
        self._tell(node, outcome.event(ticket, job))

    def _deliver(self, arrived: EnvelopeArrives | None) -> None:
        if arrived is None or not delivery.is_open(self.state, arrived.device, arrived.envelope):
            return
        name, envelope = arrived.device, arrived.envelope
        if arrived.upward:
            event = self.admission.judge(arrived)
            last = event.message if isinstance(event, Received) else None
            if isinstance(last, Failed) and last is not envelope.message:
                self._fail_late(name, last)
            self._tell(SERVER, event)
            if isinstance(last, Failed):
                self._disconnect(name)
        elif not self.devices[name].hung:
            self._tell(name, self.admission.judge(arrived))

    def _fail_late(self, name: NodeId, failed: Failed) -> None:
        """The device says ``failed`` in place of what has arrived from it, and ends."""
        event = FailedLate(failed.error, failed.diverged)
        self._record(name, event, self.devices[name].machine.handle(event, self.now))
        self._end_process(name, failed.error)

    # ---- the fleet changes -------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        name, device = change.device, self.devices[change.device]
        match change.kind:
            case "leave":
                self._end_process(name)
                self._disconnect(name)
            case "return":
                if not device.present:
                    self._start_process(name)
                    self._connect(name)
            case "cut":
                self._disconnect(name)
            case "restore":
                if device.present:
                    self._connect(name)
            case "hang":
                device.hung = True
            case "bandwidth":
                delivery.change_bandwidth(self.state, name, change.bytes_per_second)

    def _churn_due(self, tick: int) -> None:
        """Churn affects devices that take part: not those that join later or have left for good."""
        if self._churn is None:
            return
        present = {
            name: device.present
            for name, device in self.devices.items()
            if device.present or device.away_by_churn
        }
        for change in self._churn.changes(tick, present):
            self.apply(change)
            if change.kind == "leave":
                self.devices[change.device].away_by_churn = True
        if present or self.state.kernel.holds(Change):
            self._at((tick + 1) * self._churn.every, ChurnDue(tick + 1))

    def _end_process(self, name: NodeId, trouble: str = "") -> None:
        self.devices[name].end(trouble)

    def _start_process(self, name: NodeId) -> None:
        """A restarted process keeps only its incarnation and step numbers."""
        device = self.devices[name]
        if device.session:
            device.machine = device.machine.restarted()
            self._executor.reset(name)
        device.begin()

    def _connect(self, name: NodeId) -> None:
        device = self.devices[name]
        if device.connected or device.hung or device.machine.stopped:
            return
        device.session += 1
        device.connected = True
        self._tell(SERVER, Connected(name, device.session))
        self._tell(name, Connected(SERVER, device.session))

    def _disconnect(self, name: NodeId) -> None:
        device = self.devices[name]
        if not device.connected:
            return
        device.connected = False
        delivery.clear(self.state, name)
        self.admission.lost(name)
        self._tell(SERVER, Disconnected(name, device.session))
        if device.present and not device.hung:
            self._tell(name, Disconnected(SERVER, device.session))

    def _drop_peer(self, node: NodeId, peer: NodeId, reason: str) -> None:
        """A device that the server drops is notified and ends. From a server the device only
        disconnects: over the network it would reconnect, here the same message would come again."""
        self._disconnect(peer if node == SERVER else node)
        if node == SERVER:
            self._end_process(peer, reason)
        else:
            self.devices[node].trouble = f"the server broke the protocol: {reason}"
