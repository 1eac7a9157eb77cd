"""From the network to the compute device: the copy begins on arrival, and the step waits for it.

Tensors come off the network on the CPU. On a GPU their copy is ordered at once, on a stream of its
own, so it runs while another batch trains. Code that computes with them gets them through
`arrived`: there the computing stream waits for the copy; the host never does. On a CPU nothing is
copied or wrapped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from fedoptima.core.messages import (
    ActivationBatch,
    GlobalModel,
    GradientBatch,
    Message,
    ModelUpdate,
)
from fedoptima.core.types import Payload
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.streams import OnStream, current_stream


class Staged(Tensors):
    """Tensors on a GPU whose copy may still be under way."""

    def __init__(self, tensors: Tensors, copied: torch.cuda.Event) -> None:
        super().__init__(tensors)
        self._copied = copied

    @property
    def copied(self) -> bool:
        """What was copied from is not needed any more."""
        return bool(self._copied.query())  # type: ignore[no-untyped-call]

    def settle(self, compute: torch.device) -> None:
        """Make the calling thread's further computations wait for the copy."""
        stream = current_stream(compute)
        stream.wait_event(self._copied)
        for tensor in self.values():
            # Their memory belongs to the copying stream, which must not reuse it too early.
            tensor.record_stream(stream)


def stage(tensors: Tensors, compute: torch.device) -> Tensors:
    """Begin to copy ``tensors``, ideally from pinned memory, to the compute device."""
    if compute.type != "cuda":
        return tensors
    stream = _copy_stream(compute)
    with OnStream(stream):
        copies = {name: t.to(compute, non_blocking=True) for name, t in tensors.items()}
    return Staged(copies, stream.record_event())


def stage_message(message: Message, compute: torch.device) -> Message:
    """The same message, with its tensors being copied to ``compute``."""
    if compute.type != "cuda" or not isinstance(
        message, ActivationBatch | ModelUpdate | GradientBatch | GlobalModel
    ):
        return message
    if message.data.value is None:
        return message
    value = stage(unpack(message.data), compute)
    return replace(message, data=replace(message.data, value=value))


def arrived(payload: Payload, compute: torch.device) -> Tensors:
    """A payload's tensors on ``compute``, staged or not, ready for the calling thread's work."""
    tensors = unpack(payload)
    if compute.type != "cuda":
        return tensors
    if isinstance(tensors, Staged):
        tensors.settle(compute)
        return tensors
    moved = {name: tensor.to(compute, non_blocking=True) for name, tensor in tensors.items()}
    for tensor in moved.values():  # of a checkpoint: it was there, in memory of another stream
        tensor.record_stream(current_stream(compute))
    return moved


def all_arrive(compute: torch.device) -> None:
    """Make the calling thread's next work wait for every copy that has begun."""
    if compute.type == "cuda":
        current_stream(compute).wait_stream(_copy_stream(compute))


@cache
def _copy_stream(compute: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(compute)  # type: ignore[no-untyped-call]
