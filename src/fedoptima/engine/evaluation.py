"""A model on many samples, as its task measures it: in batches that fit a bound on memory.

The batch is as large as the bound allows, and a function of the model, the shape of its inputs and
the kind of device alone, never of the memory that happens to be free: an evaluation repeats.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Metrics
from fedoptima.data.dataset import Prepare, Split
from fedoptima.engine.precision import Forward, as_it_is
from fedoptima.models.activation import Inputs, call, map_tensors, samples_in
from fedoptima.tasks.ready import CLASSIFICATION
from fedoptima.tasks.task import Loss, Metric, Task

LOG = logging.getLogger("fedoptima.run")

# For what the largest operation reads and writes. A GPU wants few launches; a CPU is quickest
# while a batch stays near its caches (VGG-5 and Transformer-6: 50 to 100 samples, 1.3 to 2 times
# as fast as 1,000).
CPU_BYTES, GPU_BYTES = 2**24, 2**28


@dataclass(frozen=True)
class Tally:
    """Of one batch: figures added up, and all predictions where a metric needs them at once."""

    labels: float  # that count
    loss: float  # times the labels
    means: tuple[float, ...]  # of the task's, in their order
    part: int = 0  # of the data: the validation data first, then what devices hold out
    predictions: NDArray[Any] | None = None
    truth: NDArray[Any] | None = None


def start_evaluation(
    sides: Sequence[nn.Module],
    data: Split,
    batch: int,
    *,
    prepare: Prepare,
    loss: Loss,
    task: Task = CLASSIFICATION,
    forward: Forward = as_it_is,
    lenient: bool = False,
) -> Callable[[], Metrics]:
    """Begin an evaluation, on a GPU on a stream of its own; calling the result waits for it.

    ``lenient``: a metric that fails is left out, as of few samples.

    The sides are put into evaluation mode, so they must not be the ones that train, and must be
    left alone until the result is there.
    """
    for side in sides:
        side.eval()
    device = data.labels.device
    on_stream = _own_stream(device)
    with on_stream():
        # labels that count, the loss, the task's means
        total = torch.zeros(2 + len(task.means), dtype=torch.float64, device=device)
        kept: list[tuple[Tensor, Tensor]] = []
        for start in range(0, len(data), batch):
            rows = slice(start, start + batch)
            sums, kept_of = _sums(sides, data, rows, prepare, loss, task, forward)
            total += sums
            kept += kept_of

    def metrics() -> Metrics:
        with on_stream():  # reading waits for this stream, not for training
            sums: list[float] = total.tolist()
            return _figures(task, sums, [(p.cpu(), t.cpu()) for p, t in kept], lenient=lenient)

    return metrics


def _sums(
    sides: Sequence[nn.Module],
    data: Split,
    rows: slice,
    prepare: Prepare,
    loss: Loss,
    task: Task,
    forward: Forward,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Of one batch: what is added up, and predictions with their labels if a metric wants them."""
    labels = data.labels[rows]
    # Outside of the inference mode: what a preparation keeps is used in training, too.
    value: object = prepare(map_tensors(data.inputs, lambda tensor: tensor[rows]))
    with torch.inference_mode():
        for side in sides:
            value = forward(side, value)
        assert isinstance(value, Tensor)
        counted = task.counted(labels)
        lost = loss(value, labels).double() * counted
        count = labels.new_zeros((), dtype=torch.float64) + counted
        means = [mean(value, labels).double() for mean in task.means.values()]
        sums = torch.stack([count, lost.reshape(()), *means])
        if not task.metrics:
            return sums, []
        return sums, [(value if task.predict is None else task.predict(value), labels)]


def evaluate_batch(
    sides: Sequence[nn.Module],
    data: Split,
    number: int,
    batch: int,
    *,
    prepare: Prepare,
    loss: Loss,
    task: Task = CLASSIFICATION,
    forward: Forward = as_it_is,
) -> Tally:
    """One batch of the same evaluation on a CPU, for whoever does the others elsewhere."""
    for side in sides:
        side.eval()
    rows = slice(number * batch, (number + 1) * batch)
    sums, kept = _sums(sides, data, rows, prepare, loss, task, forward)
    count, lost, *means = sums.tolist()
    if not kept:
        return Tally(count, lost, tuple(means))
    ((predictions, labels),) = kept
    return Tally(count, lost, tuple(means), predictions=predictions.numpy(), truth=labels.numpy())


def joined(
    batches: Iterable[Tally], task: Task = CLASSIFICATION, *, lenient: bool = False
) -> Metrics:
    """The metrics of all batches, added up in their order."""
    sums = [0.0] * (2 + len(task.means))
    kept: list[tuple[Tensor, Tensor]] = []
    for tally in batches:
        for place, value in enumerate((tally.labels, tally.loss, *tally.means)):
            sums[place] += value
        if tally.predictions is not None:
            kept.append((torch.from_numpy(tally.predictions), torch.from_numpy(tally.truth)))
    return _figures(task, sums, kept, lenient=lenient)


def _figures(
    task: Task, sums: Sequence[float], kept: Sequence[tuple[Tensor, Tensor]], *, lenient: bool
) -> Metrics:
    count, lost, *means = sums
    count = max(count, 1.0)  # all labels may be ignored
    figures = [(name, total / count) for name, total in zip(task.means, means, strict=True)]
    figures.append(("loss", lost / count))
    if not task.metrics:
        return tuple(figures)
    predictions, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
    for name, metric in task.metrics.items():
        try:
            value = _measured(name, metric, predictions, labels)
        except ConfigError:
            if not lenient:
                raise
            continue
        if value is not None:
            figures.append((name, value))
    return tuple(figures)


def _measured(name: str, metric: Metric, predictions: Tensor, labels: Tensor) -> float | None:
    try:
        value = metric(predictions, labels)
        number = float(value)
    except Exception as error:  # any error in a user's metric concerns the user's metric
        raise ConfigError(
            f"metric {name!r} fails on predictions {tuple(predictions.shape)} {predictions.dtype} "
            f"and labels {tuple(labels.shape)} {labels.dtype}: {type(error).__name__}: {error}; it "
            "must return one number"
        ) from error
    if math.isfinite(number):
        return number
    LOG.warning("metric %r is %g at this evaluation, and left out", name, number)
    return None


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
