"""A simulation refuses the messages that a node would refuse over the network.

The values of a device's message are checked when it is sent, and the result is used when it
arrives: on a GPU the check is mostly done by then, and no step waits for work queued later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import Metrics, Received, Rejected
from fedoptima.core.machine import ComputeEngine, rejected
from fedoptima.core.messages import ActivationBatch, Message, ModelUpdate
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.engine.payload_validation import Values
from fedoptima.sim.state import EnvelopeArrives


class SimDeviceEngine(ComputeEngine, Protocol):
    def admit(self, message: Message) -> None: ...
    def reset(self) -> None:
        """Forget everything that is lost when a process ends."""


class SimServerEngine(ComputeEngine, Protocol):
    def inspect(self, message: Message) -> Values | None: ...
    def admit(self, message: Message, values: Values | None = None) -> None: ...
    def evaluate(self) -> Metrics: ...


class Admission:
    def __init__(self, server: SimServerEngine, devices: Mapping[NodeId, SimDeviceEngine]) -> None:
        self._server = server
        self._devices = devices
        # Not part of a checkpoint: what is missing after a restore is checked on arrival.
        self._values: dict[NodeId, dict[PayloadId, Values]] = {}

    def sent(self, device: NodeId, message: Message) -> None:
        """A message is on its way to the server."""
        if isinstance(message, ActivationBatch | ModelUpdate):
            values = self._server.inspect(message)
            if values is not None:
                self._values.setdefault(device, {})[message.data.id] = values

    def lost(self, device: NodeId) -> None:
        """Messages in transit from this device do not arrive."""
        self._values.pop(device, None)

    def judge(self, arrived: EnvelopeArrives) -> Received | Rejected:
        device, message = arrived.device, arrived.envelope.message
        session = arrived.envelope.session
        sender = device if arrived.upward else SERVER
        try:
            if arrived.upward:
                self._server.admit(message, self._values_of(device, message))
            else:
                self._devices[device].admit(message)
        except ProtocolViolation as error:
            return rejected(sender, session, error)
        return Received(sender, session, message)

    def _values_of(self, device: NodeId, message: Message) -> Values | None:
        if not isinstance(message, ActivationBatch | ModelUpdate):
            return None
        return self._values.get(device, {}).pop(message.data.id, None)
