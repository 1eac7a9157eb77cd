"""Who does the tensor work of a simulation.

The cores never look at tensors: of a job's result they need its id, its size and its counts, which
the plan knows beforehand. So a driver asks an executor for what a job *declares* and continues at
once; the executor may do the maths later, in any order in which each node's jobs come in their
order and payloads are there when they are used. Values are waited for only where somebody looks at
them: when a device's update arrives, at evaluations, at merges that compare updates, in checkpoints
and in the final model. What is wrong with values is found there, whoever did the maths, so a
run's trace is the same under every executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedoptima.core.errors import (
    FedOptimaError,
    InvariantBroken,
    ProtocolViolation,
    RunFailed,
    TrainingDiverged,
    describe,
)
from fedoptima.core.events import Metrics
from fedoptima.core.jobs import Job
from fedoptima.core.machine import ComputeEngine, Outcome
from fedoptima.core.messages import ActivationBatch, Message, ModelUpdate
from fedoptima.core.types import SERVER, NodeId, PayloadId

if TYPE_CHECKING:  # a dry run may do without torch
    from fedoptima.engine.deferred_faults import DeferredFaults, NotedFaults
    from fedoptima.engine.losses import Losses
    from fedoptima.engine.value_ranges import Values


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # a GPU, a CPU


class LateFailure(FedOptimaError):
    """A device's job, whose result is declared already, has failed."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(describe(cause))
        self.diverged = isinstance(cause, TrainingDiverged)


def raise_if_not_of_the_node(error: Exception) -> None:
    """A bug of ours, or this machine's lack of memory: a real device would not have failed. The
    run ends; without the device it would go on with less data, and look like any other."""
    if isinstance(error, InvariantBroken):
        raise error
    text = str(error)  # torch has several types for it, and RuntimeError is one of them
    if isinstance(error, MemoryError) or any(said in text for said in _OUT_OF_MEMORY):
        raise RunFailed(
            f"this machine's memory was not enough ({describe(error)}); run fewer at a time "
            "(--jobs), or with smaller batches; a run with a checkpoint can be resumed"
        ) from error


class Inspection(Protocol):
    """Of an update that a device has sent: begun when it was sent, read when it arrives."""

    def check(self) -> None:
        """Raise TrainingDiverged if the device's own loss is not finite, ProtocolViolation if the
        update, or a batch before it, has values that must not be used, LateFailure if the update
        could not be computed."""


class Executor(Protocol):
    def execute(self, node: NodeId, job: Job, result: PayloadId) -> Outcome:
        """What the job declares. Its maths, and the values of its result, may come later."""

    def reset(self, device: NodeId) -> None:
        """A device's process has ended and started again: it has forgotten everything."""

    def inspect(self, device: NodeId, update: ModelUpdate) -> Inspection | None:
        """Begin to check what a device has sent so far."""

    def admit(self, message: Message) -> None:
        """Raise ProtocolViolation if a device's message does not have the plan's form."""

    def faults(self) -> Mapping[NodeId, ProtocolViolation]:
        """Devices whose batches must not be used; each is named once."""

    def evaluate(self) -> Metrics: ...

    def settle(self) -> None:
        """Wait until all results have their values."""

    def close(self) -> None:
        """End what works for it; nothing is asked of it any more."""


# ---- all maths at once, in the order of the virtual clock ----------------------------------------


class DeviceWork(ComputeEngine, Protocol):
    """A simulated device's engine."""

    losses: Losses | None

    def reset(self) -> None: ...


class ServerWork(ComputeEngine, Protocol):
    """The engine of a simulation's server."""

    def inspect(self, message: Message) -> Values | None: ...
    def admit(self, message: Message, values: Values | None = None) -> None: ...
    @property
    def deferred(self) -> DeferredFaults | None: ...
    def evaluate(self) -> Metrics: ...


@dataclass(frozen=True)
class _Begun:
    """An update that is looked at where it is."""

    server: ServerWork
    update: ModelUpdate
    values: Values | None
    losses: Losses | None
    noted: NotedFaults | None

    def check(self) -> None:
        if self.losses is not None:
            self.losses.check()
        self.server.admit(self.update, self.values)
        if self.noted is not None:
            self.noted.check()


class Inline:
    """The reference: does a job's maths when its result is due."""

    def __init__(self, server: ServerWork, devices: Mapping[NodeId, DeviceWork]) -> None:
        self._server = server
        self._devices = devices

    def execute(self, node: NodeId, job: Job, result: PayloadId) -> Outcome:
        engine = self._server if node == SERVER else self._devices[node]
        return engine.execute(job, result)

    def reset(self, device: NodeId) -> None:
        self._devices[device].reset()
        if self._server.deferred is not None:
            self._server.deferred.forget(device)

    def inspect(self, device: NodeId, update: ModelUpdate) -> Inspection:
        losses, deferred = self._devices[device].losses, self._server.deferred
        noted = deferred.of(device) if deferred is not None else None
        return _Begun(self._server, update, self._server.inspect(update), losses, noted)

    def admit(self, message: Message) -> None:
        if isinstance(message, ActivationBatch):
            self._server.admit(message)

    def faults(self) -> Mapping[NodeId, ProtocolViolation]:
        return {} if self._server.deferred is None else self._server.deferred.read()

    def evaluate(self) -> Metrics:
        return self._server.evaluate()

    def settle(self) -> None:
        """Nothing is ever left to do."""

    def close(self) -> None: ...


# ---- on a GPU, a stream for each node ------------------------------------------------------------


class StreamWork(DeviceWork, Protocol):
    def context(self) -> AbstractContextManager[object]: ...


class StreamServerWork(ServerWork, Protocol):
    def context(self) -> AbstractContextManager[object]:
        """The stream that waits for all others of the server."""

    def context_of(self, device: NodeId) -> AbstractContextManager[object]:
        """The stream on which this device's batches train."""


class OnStreams(Inline):
    """Orders a job's maths when its result is due; the GPU does it when what it needs is there."""

    def __init__(
        self,
        server: StreamServerWork,
        devices: Mapping[NodeId, StreamWork],
        settle: Callable[[], None],
    ) -> None:
        super().__init__(server, devices)
        self._streams, self._device_streams = server, devices
        self._settle = settle

    def reset(self, device: NodeId) -> None:
        self._devices[device].reset()
        with self._streams.context_of(device):
            if self._server.deferred is not None:
                self._server.deferred.forget(device)

    def inspect(self, device: NodeId, update: ModelUpdate) -> Inspection:
        losses, deferred = self._devices[device].losses, self._server.deferred
        with self._device_streams[device].context():
            values = self._server.inspect(update)
        with self._streams.context_of(device):
            noted = deferred.of(device) if deferred is not None else None
        return _Begun(self._server, update, values, losses, noted)

    def faults(self) -> Mapping[NodeId, ProtocolViolation]:
        if self._server.deferred is None:
            return {}
        with self._streams.context():
            found = self._server.deferred.faults()
        for device in found:
            with self._streams.context_of(device):  # where its next batch is looked at
                self._server.deferred.forget(device)
        return found

    def settle(self) -> None:
        self._settle()
