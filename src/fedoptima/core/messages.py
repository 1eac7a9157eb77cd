"""What crosses the wire, in both modes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fedoptima.core.types import Payload, PayloadId, later, value

ENVELOPE_BYTES: Final = 64  # size of a message without its tensors


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """What a device does inside a round, as data, so that the server can send it."""

    kind: str  # "full", "auxiliary" or "gradient"
    micro_batches: int = 1  # gradient only: parts of a mini-batch in flight; 0: by the plan
    delta: bool = False  # hand in the change since the round began, not the model
    train_every: int = later(1)  # auxiliary only: the others of n batches are only sent
    overlap: bool = later(False)  # without gradients only: train on while an update is merged
    cut: int = later(0)  # blocks on this device, where devices have cuts of their own


@dataclass(frozen=True, slots=True)
class Join:
    """A device's first message in a session.

    ``training`` and ``pending`` report work from an earlier session: an unfinished round, or a
    finished update without an answer. Either is worth more than a new model.
    """

    incarnation: int  # one higher each time the device's process starts
    samples: int  # held, not trained: the weight in a synchronous merge
    flops_per_second: float  # o_k
    bytes_per_second: float  # b_k
    version: int = -1  # t_k; -1: never had a model
    training: bool = False
    pending: PayloadId | None = None
    step: int = 0  # of its next iteration: a trace then says where each incarnation started
    cut: int = later(0)  # of the assignment that its work belongs to

    @property
    def has_work(self) -> bool:
        return self.training or self.pending is not None


@value
class ActivationBatch:
    seq: int
    data: Payload
    part: int = 0  # micro-batch `part` of `parts`
    parts: int = 1
    cut: int = later(default=0)  # where it enters the server's side; 0: where that begins


@value
class ModelUpdate:
    version: int  # t_k: the global model this round began with
    trained: int  # samples the device trained on since its last update
    data: Payload
    forwarded: int = later(default=0)  # samples it sent without training on them
    # Where devices have cuts of their own: its cut, the time it computed for these samples, and
    # what its uplink carries; 0: not measured.
    cut: int = later(default=0)
    seconds: float = later(default=0.0)
    bytes_per_second: float = later(default=0.0)

    @property
    def processed(self) -> int:
        """What the update counts towards an epoch."""
        return self.trained + self.forwarded

    def without_tensors(self) -> ModelUpdate:
        """For code that keeps it and does not need them."""
        return replace(self, data=Payload(self.data.id, self.data.nbytes))


@dataclass(frozen=True, slots=True)
class Failed:
    """The device cannot continue. ``diverged``: because its loss is not finite."""

    error: str
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    plan: str  # JSON of the Pre-processor's plan; the core never reads it
    program: ProgramSpec
    iterations: int  # H


@value
class TurnOn:
    """One credit: the next activation batch may be sent."""


@dataclass(frozen=True, slots=True)
class HandIn:
    """Send the pending update: the server has not used it yet."""


@value
class GradientBatch:
    seq: int
    part: int
    data: Payload


@value
class GlobalModel:
    version: int
    progress: float  # share of the training budget spent: learning rates follow it
    data: Payload


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str


ToServer = Join | ActivationBatch | ModelUpdate | Failed
ToDevice = Assignment | TurnOn | HandIn | GradientBatch | GlobalModel | Stop
Message = ToServer | ToDevice

BULK = (ActivationBatch, GradientBatch)
_WITH_TENSORS = (*BULK, ModelUpdate, GlobalModel)


def nbytes(message: Message) -> int:
    """The size of a message on the wire."""
    if isinstance(message, _WITH_TENSORS):
        return ENVELOPE_BYTES + message.data.nbytes
    return ENVELOPE_BYTES + (len(message.plan) if isinstance(message, Assignment) else 0)


def has_tensors(message: Message) -> bool:
    """Activations, gradients and models; the others are small."""
    return isinstance(message, _WITH_TENSORS)


def is_bulk(message: Message) -> bool:
    """Activations and their gradients: control messages and models overtake these."""
    return isinstance(message, BULK)
