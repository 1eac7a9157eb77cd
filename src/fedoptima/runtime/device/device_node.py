"""A device: its core, its engine, and the link to its server while there is one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Effect, Evaluate, Run, Send
from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.events import (
    Connected,
    Disconnected,
    Event,
    JobDone,
    Measured,
    Received,
)
from fedoptima.core.jobs import ExportModel, computed
from fedoptima.core.machine import ComputeEngine, rejected
from fedoptima.core.messages import Message, ModelUpdate
from fedoptima.core.text import printable
from fedoptima.core.types import SERVER, NodeId
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.device.state import WHAT, DeviceState, StateFile
from fedoptima.runtime.device.telemetry import Telemetry
from fedoptima.runtime.disk import Disk
from fedoptima.runtime.node import Node


class ServerLink(Protocol):
    """The connection, as far as the node uses it."""

    number: int

    def send(self, message: Message) -> None: ...
    def carries(self) -> float: ...  # bytes per second, as measured since the last time; 0: unknown
    def end(self, reason: str) -> None: ...


class NetworkDeviceEngine(ComputeEngine, Protocol):
    def admit(self, message: Message) -> None: ...
    def receive(self, message: Message) -> Message: ...


class DeviceNode(Node):
    machine: DeviceCore
    engine: NetworkDeviceEngine

    def __init__(
        self,
        name: NodeId,
        machine: DeviceCore,
        engine: NetworkDeviceEngine,
        compute: Compute,
        clock: Callable[[], float],
        *,
        run: str,
        state: StateFile,
        disk: Disk,
        telemetry: Telemetry,
        log: logging.Logger,
    ) -> None:
        incarnation = machine.incarnation
        super().__init__(name, machine, engine, compute, clock, incarnation=incarnation, log=log)
        self.run = run
        self.telemetry = telemetry
        self.last_session = 0
        self._state = state
        self._disk = disk
        self._link: ServerLink | None = None
        self._began = self._computed = 0.0  # the running job; seconds for the next update
        self.observers.append(telemetry.observe)

    def connected(self, link: ServerLink) -> None:
        self._link = link
        self.last_session = link.number
        self.tell(Connected(SERVER, link.number))

    def disconnected(self, link: ServerLink) -> None:
        if self._link is link:
            self._link = None
            self.tell(Disconnected(SERVER, link.number))

    def receive(self, link: ServerLink, message: Message) -> None:
        if self._link is link:
            if self.machine.prepared:  # else the engine knows no plan yet, or the one before
                self.engine.admit(message)
            self.tell(Received(SERVER, link.number, self.engine.receive(message)))

    def reject(self, link: ServerLink, error: ProtocolViolation) -> None:
        """Leave a server for what it has sent."""
        if self._link is link:
            self.tell(rejected(SERVER, link.number, error))

    def start(self, order: Run) -> None:
        self._began = self.clock()
        super().start(order)

    def tell(self, event: Event) -> None:
        """With an update goes what was measured, where the device's cut depends on it."""
        if isinstance(event, JobDone) and self.machine.cut:
            if isinstance(event.job, ExportModel):
                carried = self._link.carries() if self._link is not None else 0.0
                super().tell(Measured(self._computed, carried))
            self._computed = computed(self._computed, event.job, self.clock() - self._began)
        super().tell(event)

    def send(self, effect: Send) -> None:
        if self._link is not None and self._link.number == effect.session:
            self._link.send(effect.message)

    def drop_peer(self, peer: NodeId, session: int, reason: str) -> None:
        self.log.error("the server broke the protocol: %s", printable(reason))
        if self._link is not None and self._link.number == session:
            self._link.end(reason)
            self.disconnected(self._link)

    def evaluate(self, effect: Evaluate) -> None:
        raise InvariantBroken("a device was asked to evaluate")

    def to_perform(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        """A step's number decides its data, so it is kept: at the end of every round."""
        if any(isinstance(e, Send) and isinstance(e.message, ModelUpdate) for e in effects):
            self.save()
        return effects

    def save(self) -> None:
        state = DeviceState(self.run, self.machine.incarnation, self.machine.step)
        try:
            self._state.save(state)
        except OSError as error:  # a disk that fails must not end the training
            self._disk.failed(WHAT, error)
        else:
            self._disk.worked(WHAT)
