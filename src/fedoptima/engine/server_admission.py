"""Which messages of devices a server's engine accepts, and in what form it takes them over."""

from __future__ import annotations

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import ActivationBatch, Message, ModelUpdate
from fedoptima.engine.deferred_faults import DeferredFaults
from fedoptima.engine.gpu_upload import stage_message
from fedoptima.engine.payload_validation import (
    ExpectedActivations,
    ExpectedModel,
    Values,
    tensors_in,
)
from fedoptima.engine.workload import Workload


class ServerAdmission:
    """All of this may be called on the thread that receives messages."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.deferred: DeferredFaults | None = None
        self._expected_update: ExpectedModel | None = None
        self._expected_batch: ExpectedActivations | None = None

    def inspect(self, message: Message) -> Values | None:
        """Begin to check the values in a device's message; `admit` uses the result."""
        if isinstance(message, ModelUpdate | ActivationBatch):
            tensors = tensors_in(message.data)
            if isinstance(message, ActivationBatch) and self._expected_batch is not None:
                tensors = self._expected_batch.comparable(tensors)
            return Values(tensors)
        return None

    def admit(self, message: Message, values: Values | None = None) -> None:
        """Raise ProtocolViolation if a device's tensors are not those of this plan.

        ``values``: what `inspect` returned, if it was called before.
        """
        match message:
            case ModelUpdate(data=data):
                # Before there is a plan the core keeps an update's id only.
                if self._expected_update is not None:
                    self._expected_update.check(data, values)
            case ActivationBatch():
                if self._expected_batch is None:
                    raise ProtocolViolation("activations for a server that trains on none")
                if self.deferred is None:
                    self._expected_batch.check(message, values)
                else:
                    self._expected_batch.check_form(message)

    def most_bytes(self, kind: type[Message]) -> int:
        """Of the tensors in the largest message of this kind that a device may send.

        Before there is a plan, an update may come that was made for an earlier process.
        """
        if issubclass(kind, ModelUpdate):
            if self._expected_update is not None:
                return self._expected_update.nbytes
            return sum(tensor.nbytes for tensor in self._workload.model.state_dict().values())
        if issubclass(kind, ActivationBatch) and self._expected_batch is not None:
            return self._expected_batch.nbytes
        return 0

    def receive(self, message: Message) -> Message:
        """An admitted message, with its tensors being copied to the compute device."""
        return stage_message(message, self._workload.compute)
