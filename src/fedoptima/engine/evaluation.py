"""Accuracy and loss of a model on many samples: in batches that fit a bound on memory.

The batch is as large as the bound allows, and a function of the model, the shape of its inputs and
the kind of device alone, never of the memory that happens to be free: an evaluation repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedoptima.core.events import Metrics
from fedoptima.data.dataset import Prepare, Split
from fedoptima.engine.precision import Forward, as_it_is
from fedoptima.models.activation import Inputs, call, map_tensors, samples_in

Loss = Callable[[Tensor, Tensor], Tensor]
Sums = tuple[int, float]  # of a batch: samples that are right, and their losses added up

# For what the largest operation reads and writes. A GPU wants few launches; a CPU is quickest
# while a batch stays near its caches (VGG-5 and Transformer-6: 50 to 100 samples, 1.3 to 2 times
# as fast as 1,000).
CPU_BYTES, GPU_BYTES = 2**24, 2**28


def start_evaluation(
    sides: Sequence[nn.Module],
    data: Split,
    batch: int,
    *,
    prepare: Prepare,
    loss: Loss,
    forward: Forward = as_it_is,
) -> Callable[[], Metrics]:
    """Begin an evaluation, on a GPU on a stream of its own; calling the result waits for it.

    The sides are put into evaluation mode, so they must not be the ones that train, and must be
    left alone until the result is there.
    """
    for side in sides:
        side.eval()
    device = data.labels.device
    on_stream = _own_stream(device)
    with on_stream():
        correct = torch.zeros((), dtype=torch.int64, device=device)
        total = torch.zeros((), dtype=torch.float64, device=device)
        for start in range(0, len(data), batch):
            rows = slice(start, start + batch)
            right, lost = _sums(sides, data, rows, prepare, loss, forward)
            correct += right
            total += lost

    def metrics() -> Metrics:
        with on_stream():  # reading waits for this stream, not for training
            return (("accuracy", int(correct) / len(data)), ("loss", float(total) / len(data)))

    return metrics


def _sums(
    sides: Sequence[nn.Module],
    data: Split,
    rows: slice,
    prepare: Prepare,
    loss: Loss,
    forward: Forward,
) -> tuple[Tensor, Tensor]:
    """Of one batch: the samples that are right, and the losses of all."""
    labels = data.labels[rows]
    # Outside of the inference mode: what a preparation keeps is used in training, too.
    value: object = prepare(map_tensors(data.inputs, lambda tensor: tensor[rows]))
    with torch.inference_mode():
        for side in sides:
            value = forward(side, value)
        assert isinstance(value, Tensor)
        right = (value.argmax(dim=1) == labels).sum()
        return right, loss(value, labels).double() * len(labels)


def evaluate_batch(
    sides: Sequence[nn.Module],
    data: Split,
    number: int,
    batch: int,
    *,
    prepare: Prepare,
    loss: Loss,
    forward: Forward = as_it_is,
) -> Sums:
    """One batch of the same evaluation on a CPU, for whoever does the others elsewhere."""
    for side in sides:
        side.eval()
    rows = slice(number * batch, (number + 1) * batch)
    right, lost = _sums(sides, data, rows, prepare, loss, forward)
    return int(right), float(lost)


def joined(batches: Iterable[Sums], samples: int) -> Metrics:
    """The metrics of all batches, added up in their order."""
    correct, total = 0, 0.0
    for right, loss in batches:
        correct += right
        total += loss
    return (("accuracy", correct / samples), ("loss", total / samples))


def forward_pass(model: nn.Module, example: Inputs) -> tuple[object, int]:
    """The output, and what the largest operation reads and writes for one sample, about."""
    largest = LargestResult()
    with torch.no_grad(), largest:
        output = call(model, example)
    inputs_too = 2
    return output, max(1, inputs_too * largest.bytes // samples_in(example))


class LargestResult(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes that one operation writes; views write nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result: object = func(*args, **(kwargs or {}))
        if any(r.alias_info is None or r.alias_info.is_write for r in func._schema.returns):
            tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            self.bytes = max(self.bytes, sum(tensor.nbytes for tensor in tensors))
        return result


def batch_within_memory(sample_bytes: int, device: torch.device) -> int:
    bound = CPU_BYTES if device.type == "cpu" else GPU_BYTES
    return max(1, bound // sample_bytes)


def _own_stream(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Puts work on the evaluations' stream, after what has been put on the present one so far."""
    if device.type != "cuda":
        return nullcontext
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return lambda: torch.cuda.stream(stream)


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    # One for all evaluations: every stream keeps the memory that was allocated on it.
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
