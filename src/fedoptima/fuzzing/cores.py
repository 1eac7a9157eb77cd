"""The cores and engines of a script on a virtual clock: who is told what, and the laws of it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import partial

from fedoptima.core.effects import (
    Drop,
    Effect,
    Evaluate,
    Fold,
    Halt,
    Run,
    Send,
    SetTimer,
)
from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import Evaluated, Event, Received, Rejected, TimerFired
from fedoptima.core.jobs import (
    AddUp,
    AuxiliaryStep,
    Backward,
    ExportModel,
    FullStep,
    Job,
    LoadModel,
    SkipStep,
    source_of,
)
from fedoptima.core.machine import (
    broke_the_protocol,
    job_failed,
)
from fedoptima.core.messages import Message, ModelUpdate
from fedoptima.core.seeding import derive
from fedoptima.core.types import SERVER, NodeId, payload_id
from fedoptima.fuzzing.nodes import Connection, DeviceProcess, Due, ServerProcess
from fedoptima.fuzzing.script import Fault, Kind, Script
from fedoptima.sim.state import EventKernel
from fedoptima.testing.law_broken import LawBroken
from fedoptima.testing.toy import ToyCosts

_TRAINING = (AuxiliaryStep, FullStep, Backward)
Told = Callable[[float, NodeId, object, list[Effect]], None]  # an event, or a fault


class Cores(ABC):
    def __init__(self, script: Script, told: Told) -> None:
        self.script = script
        self._told = told
        self._kernel = EventKernel()
        self._rng = random.Random(derive(script.seed, "network"))
        self.server = ServerProcess(script)
        self.devices = {
            spec.name: DeviceProcess(spec, number) for number, spec in enumerate(script.devices)
        }
        speeds = {SERVER: script.server_speed}
        self._costs = ToyCosts(speeds | {spec.name: spec.speed for spec in script.devices})
        self._crash_due: Fault | None = None  # with the server's next event
        self._resuming = False  # the connections of a restored server are gone, which it is told
        self._timer_number = 0
        self.outcome: Halt | None = None
        self.events = 0
        self.tries: Counter[Kind] = Counter()
        self.worst: dict[Kind, float] = {}  # seconds until the device trained again

    @property
    def now(self) -> float:
        return self._kernel.now

    def _later(self, seconds: float, due: Due) -> None:
        self._kernel.at(self.now + seconds, due)

    @abstractmethod
    def _transmit(self, connection: Connection, message: Message, *, upward: bool) -> None: ...

    @abstractmethod
    def _drop(self, name: NodeId, session: int) -> None:
        """The server ends a session for what the device has sent."""

    @abstractmethod
    def _end_process(self, device: DeviceProcess, unnoticed: float) -> None: ...

    @abstractmethod
    def _crash(self, fault: Fault) -> None: ...

    @abstractmethod
    def _after_event(self) -> None:
        """The server has handled an event."""

    def _strikes(self, kind: Kind, device: DeviceProcess | None = None) -> None:
        self.tries[kind] += 1
        for hit in (device,) if device is not None else self.devices.values():
            hit.hit.setdefault(kind, self.now)

    def _is_back(self, device: DeviceProcess) -> None:
        if device.connection is not None:
            for kind, at in device.hit.items():
                self.worst[kind] = max(self.worst.get(kind, 0.0), self.now - at)
            device.hit.clear()

    # ---- the cores ---------------------------------------------------------------------------

    def _tell_server(self, event: Event) -> None:
        server = self.server
        if self.outcome is not None or not server.up:
            return
        self.events += 1
        try:
            effects = server.core.handle(event, self.now)
        except ProtocolViolation as error:
            if not isinstance(event, Received | Rejected):
                raise
            device = self.devices[event.sender]
            if not device.expect_drop:
                raise LawBroken(
                    "protocol", f"the server refused {event.sender}: {error}"
                ) from error
            effects = [broke_the_protocol(event.sender, error)]
            self._told(self.now, SERVER, event, effects)
            server.books.see(self.now, event, effects, server.core)
            self._drop(event.sender, event.session)
            return
        self._told(self.now, SERVER, event, effects)
        server.books.see(self.now, event, effects, server.core)
        server.core.check()
        for effect in effects:  # before a checkpoint, as a real server has it
            if isinstance(effect, Fold):
                if server.job is not None:
                    raise LawBroken("jobs", f"{effect} while {server.job} runs")
                server.engine.execute(AddUp(effect.part), effect.part.data.id)
        if server.checkpoint_due() and not server.core.stopped:
            ordered = next((effect for effect in effects if isinstance(effect, Run)), None)
            asked = [effect for effect in effects if isinstance(effect, Evaluate)]
            server.save(self.now, ordered, asked)
        fault = self._crash_due
        if fault is None or server.core.stopped:
            for effect in effects:
                self._perform(effect)
            self._after_event()
            return
        self._crash_due = None
        done = len(effects) // 2 if fault.variant.startswith("half") else 0
        for effect in effects[:done]:
            self._perform(effect)
        self._crash(fault)

    def _perform(self, effect: Effect) -> None:
        server = self.server
        match effect:
            case Run():
                self._start_server_job(effect)
            case Send(to, session, message):
                connection = server.sessions.get(to)
                if connection is not None and connection.number == session:
                    self._transmit(connection, message, upward=False)
                elif not self._resuming:
                    raise LawBroken("sessions", f"sent to a session that is over: {effect}")
            case Evaluate():
                self._evaluate(effect)
            case SetTimer(key, at):
                self._set_timer(key, at)
            case Drop(peer, session):
                self._later(0.0, partial(self._drop, peer, session))
            case Halt():
                self.outcome = effect

    def _tell_device(self, device: DeviceProcess, event: Event) -> None:
        self.events += 1
        try:
            effects = device.core.handle(event, self.now)
        except ProtocolViolation as error:
            raise LawBroken("protocol", f"{device.name} refused the server: {error}") from error
        self._told(self.now, device.name, event, effects)
        device.core.check()
        for effect in effects:
            match effect:
                case Run():
                    self._start_job(device, effect)
                case Send(_, session, message):
                    if isinstance(message, ModelUpdate):
                        self._hands_in(device, message)
                    connection = device.connection
                    if connection is not None and connection.number == session:
                        self._transmit(connection, message, upward=True)
                case Halt():
                    self._end_process(device, 0.1)

    def _hands_in(self, device: DeviceProcess, update: ModelUpdate) -> None:
        device.saved_step = device.core.step
        said = (update.data.id, update.trained, update.forwarded)
        if said != (found := device.exported):
            text = f"{device.name} says {said} (samples trained on, only sent), its engine {found}"
            raise LawBroken("counters", text)

    # ---- jobs --------------------------------------------------------------------------------

    def _seconds(self, node: NodeId, job: Job) -> float:
        return self._costs.seconds(node, job) * self._rng.uniform(0.9, 1.1)

    def _start_server_job(self, order: Run) -> None:
        server = self.server
        if server.job is not None:
            raise LawBroken("jobs", f"{order} while {server.job} runs")
        server.job = order
        due = partial(self._finish_server_job, order, server.process)
        self._later(self._seconds(SERVER, order.job), due)

    def _finish_server_job(self, order: Run, process: int) -> None:
        server = self.server
        if server.process != process or not server.up:
            return
        server.job = None
        source = source_of(order.job)
        # A server that fails with every device it has known ends the run, as it should.
        others = any(name != source for name in server.core.members)
        if source in server.fails_with and others:
            device = self.devices[source]
            device.restarts_after = server.fails_with.pop(source)
            device.expect_drop = source in server.core.sessions
            self._strikes(Kind.SERVER_JOB, device)
            failure = job_failed(order.ticket, order.job, RuntimeError("planted"))
            self._tell_server(failure)
            return
        result = payload_id(SERVER, server.incarnation, order.ticket)
        outcome = server.engine.execute(order.job, result)
        self._tell_server(outcome.event(order.ticket, order.job))

    def _evaluate(self, asked: Evaluate) -> None:
        server = self.server
        server.evaluations[asked.index] = asked
        metrics, process = server.engine.evaluate(), server.process

        def answer() -> None:
            if server.process == process and server.up:
                del server.evaluations[asked.index]
                self._tell_server(Evaluated(asked.index, metrics))

        self._later(self._rng.choice((0.0, 0.5, 2.0)), answer)

    def _set_timer(self, key: str, at: float) -> None:
        server = self.server
        self._timer_number += 1
        server.timers[key] = number = self._timer_number
        process = server.process

        def fire() -> None:
            if server.process == process and server.up and server.timers.get(key) == number:
                del server.timers[key]
                self._tell_server(TimerFired(key))

        self._later(max(0.0, at - self.now), fire)

    def _start_job(self, device: DeviceProcess, order: Run) -> None:
        due = partial(self._finish_job, device, order)
        self._later(self._seconds(device.name, order.job), self._of(device, due))

    def _finish_job(self, device: DeviceProcess, order: Run) -> None:
        job = order.job
        if device.fails and isinstance(job, _TRAINING):
            device.restarts_after, device.fails = device.fails, 0.0
            self._strikes(Kind.JOB, device)
            self._tell_device(device, job_failed(order.ticket, job, RuntimeError("planted")))
            return
        result = payload_id(device.name, device.core.incarnation, order.ticket)
        outcome = device.engine.execute(job, result)
        if isinstance(job, LoadModel):
            device.trained = device.forwarded = 0
        if isinstance(job, ExportModel):  # it may train on before it is connected again
            device.exported = (outcome.result.id, device.trained, device.forwarded)
            device.trained = device.forwarded = 0
        if isinstance(job, SkipStep):
            device.forwarded += outcome.samples
        if isinstance(job, _TRAINING):
            step = (job.seq, job.part if isinstance(job, Backward) else 0)
            if step <= device.last_step:
                raise LawBroken("exactly once", f"{device.name} trained step {job.seq} twice")
            device.last_step = step
            device.trained += outcome.samples
            self._is_back(device)
        self._tell_device(device, outcome.event(order.ticket, job))

    def _of(self, device: DeviceProcess, due: Due) -> Due:
        """Void once the process has ended; while it hangs, it waits."""
        process = device.process

        def when_due() -> None:
            if device.process == process:
                if device.hung:
                    device.backlog.append(when_due)
                else:
                    due()

        return when_due
