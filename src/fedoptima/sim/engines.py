"""What a simulation needs of engines and of a model of what jobs cost."""

from __future__ import annotations

from typing import Protocol

from fedoptima.core.events import Metrics
from fedoptima.core.jobs import Job
from fedoptima.core.machine import ComputeEngine
from fedoptima.core.messages import Message
from fedoptima.core.types import NodeId
from fedoptima.engine.payload_validation import Values


class SimDeviceEngine(ComputeEngine, Protocol):
    def admit(self, message: Message) -> None: ...
    def reset(self) -> None:
        """Forget everything a process forgets when it ends."""


class SimServerEngine(ComputeEngine, Protocol):
    def inspect(self, message: Message) -> Values | None: ...
    def admit(self, message: Message, values: Values | None = None) -> None: ...
    def evaluate(self) -> Metrics: ...


class CostModel(Protocol):
    def seconds(self, node: NodeId, job: Job) -> float: ...
