"""Which messages of devices a server's engine accepts, and in what form it takes them over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import (
    ActivationBatch,
    GlobalModel,
    GradientBatch,
    Message,
    ModelUpdate,
)
from fedoptima.engine.deferred_faults import DeferredFaults
from fedoptima.engine.gpu_upload import stage_message
from fedoptima.engine.payload_validation import (
    ExpectedActivations,
    ExpectedModel,
    tensors_in,
)
from fedoptima.engine.value_ranges import Values
from fedoptima.engine.workload import Workload


@dataclass(frozen=True)
class Expected:
    """What the plan lets devices send. It can be given to another process, which checks there."""

    model_bytes: int  # of the whole model: there may be no plan yet
    update: ExpectedModel | None = None
    batch: ExpectedActivations | None = None
    cuts: Mapping[int, Expected] = field(default_factory=dict)  # where devices have their own

    def of(self, message: Message) -> Expected:
        """What is expected of the cut that the message says it is of."""
        if not self.cuts or not isinstance(message, ModelUpdate | ActivationBatch):
            return self
        if message.cut not in self.cuts:
            raise ProtocolViolation(f"{message.cut} blocks on a device: not a cut of the plan")
        return self.cuts[message.cut]

    def check(
        self, message: Message, values: Values | None = None, *, form_alone: bool = False
    ) -> None:
        """Raise ProtocolViolation if a device's tensors are not those of this plan.

        ``form_alone``: the values of activations are checked elsewhere.
        """
        if self.cuts and (own := self.of(message)) is not self:
            return own.check(message, values, form_alone=form_alone)
        match message:
            case ModelUpdate(data=data):
                # Before there is a plan the core keeps an update's id only.
                if self.update is not None:
                    self.update.check(data, values)
            case ActivationBatch():
                if self.batch is None:
                    raise ProtocolViolation("activations for a server that trains on none")
                if form_alone:
                    self.batch.check_form(message)
                else:
                    self.batch.check(message, values)

    def most_bytes(self, kind: type[Message]) -> int:
        """Of the tensors in the largest message of this kind that a device may send or be sent.

        Before there is a plan, an update may come that was made for an earlier process.
        """
        if self.cuts:
            return max(expected.most_bytes(kind) for expected in self.cuts.values())
        if self.update is None and issubclass(kind, ModelUpdate | GlobalModel):
            return self.model_bytes
        if self.update is not None and issubclass(kind, ModelUpdate):
            return self.update.nbytes
        if self.update is not None and issubclass(kind, GlobalModel):
            return self.update.model_bytes
        if self.batch is not None and issubclass(kind, ActivationBatch):
            return self.batch.nbytes
        if self.batch is not None and issubclass(kind, GradientBatch):
            return self.batch.gradient_bytes
        return 0


class ServerAdmission:
    """All of this may be called on the thread that receives messages."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._on_gpu = workload.compute.type == "cuda"
        self.deferred: DeferredFaults | None = None
        model = workload.model.state_dict()
        self.expected = Expected(sum(tensor.nbytes for tensor in model.values()))

    def inspect(self, message: Message) -> Values | None:
        """Begin to check the values in a device's message; `admit` uses the result."""
        if isinstance(message, ModelUpdate | ActivationBatch):
            tensors, expected = tensors_in(message.data), self.expected.of(message)
            if isinstance(message, ActivationBatch) and expected.batch is not None:
                tensors = expected.batch.comparable(tensors)
            elif isinstance(message, ModelUpdate) and expected.update is not None:
                tensors = expected.update.codec.comparable(tensors)
            return Values(tensors)
        return None

    def admit(self, message: Message, values: Values | None = None) -> None:
        """Raise ProtocolViolation if a device's tensors are not those of this plan.

        ``values``: what `inspect` returned, if it was called before.
        """
        self.expected.check(message, values, form_alone=self.deferred is not None)

    def most_bytes(self, kind: type[Message]) -> int:
        return self.expected.most_bytes(kind)

    def receive(self, message: Message) -> Message:
        """An admitted message, with its tensors being copied to the compute device."""
        return stage_message(message, self._workload.compute) if self._on_gpu else message
