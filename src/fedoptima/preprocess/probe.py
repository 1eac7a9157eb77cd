"""How fast this machine and its link really are: o_k and b_k, measured.

Times come from a clock that is passed in. A median (for speed) and a fit that may leave one sample
out (for the link) keep a single delay of the machine from deciding the split.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from torch import nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import call, map_tensors, tensors_of
from fedoptima.preprocess.isolation import isolated

Clock = Callable[[], float]
FEWEST_RUNS = 3

FIRST_TRANSFER = 32 * 1024  # bytes: a quarter of a second at 1 Mbit/s
LARGEST_TRANSFER = 4 * 1024 * 1024  # about one batch of VGG-5's activations
LONG_TRANSFER = 0.25  # seconds: long enough to tell the bandwidth from the latency


def measure_speed(
    module: nn.Module,
    example: object,
    flops: float,
    *,
    seconds_budget: float = 0.5,
    clock: Clock = time.perf_counter,
) -> float:
    """FLOP/s at running ``module`` forward and backward on the batch ``example``.

    ``flops`` is the work of one such run. At least three runs, until the budget is spent.
    """
    if not (flops > 0 and seconds_budget >= 0):
        raise ConfigError(
            f"flops = {flops}, seconds_budget = {seconds_budget}: a speed is measured on work "
            "above 0 in a time of at least 0"
        )
    on_cuda = any(tensor.is_cuda for tensor in tensors_of(example))
    with isolated(module, example) as copy, torch.enable_grad():
        copy.train()
        _step(copy, example, on_cuda)  # the first run also allocates and picks kernels
        seconds: list[float] = []
        end = clock() + seconds_budget
        while len(seconds) < FEWEST_RUNS or clock() < end:
            start = clock()
            _step(copy, example, on_cuda)
            seconds.append(clock() - start)
    return flops / max(median(seconds), 1e-9)  # a clock may be too coarse to see one run


def _step(module: nn.Module, example: object, on_cuda: bool) -> None:
    inputs = map_tensors(
        example, lambda tensor: tensor.detach().requires_grad_(tensor.is_floating_point())
    )
    outputs = [tensor for tensor in tensors_of(call(module, inputs)) if tensor.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(tensor) for tensor in outputs])
    if on_cuda:
        torch.cuda.synchronize()


class Probing:
    """Which transfers to time, one after another, and the bandwidth they show (b_k).

    Sizes double until one takes long, so a fast link is measured on large transfers and a slow one
    is done within about two seconds.
    """

    def __init__(self) -> None:
        self._samples: list[tuple[int, float]] = []

    def next_size(self) -> int | None:
        """Bytes of the next transfer; None: enough is known."""
        if not self._samples:
            return FIRST_TRANSFER
        nbytes, seconds = self._samples[-1]
        if seconds > LONG_TRANSFER or nbytes >= LARGEST_TRANSFER:
            return None
        return 2 * nbytes

    def took(self, nbytes: int, seconds: float) -> None:
        self._samples.append((nbytes, max(seconds, 1e-9)))  # a clock may be too coarse to see it

    def bytes_per_second(self) -> float:
        return estimate_bandwidth(self._samples)[0]


def estimate_bandwidth(samples: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(bytes per second, latency in seconds) from timed transfers of (bytes, seconds).

    Least squares of seconds = latency + bytes / bandwidth. With four samples or more, the one whose
    absence gives the best fit is left out: a stalled transfer says nothing about the link.
    """
    if not samples:
        raise ConfigError("samples is empty: at least one timed transfer is needed")
    for nbytes, seconds in samples:
        if not (nbytes > 0 and seconds > 0):
            raise ConfigError(f"sample ({nbytes}, {seconds}): bytes and seconds must be above 0")
    kept = np.asarray(samples, dtype=np.float64)
    if len(kept) >= 4:
        without = [np.delete(kept, index, axis=0) for index in range(len(kept))]
        kept = min(without, key=lambda rest: _fit(rest)[2])
    slope, latency, _ = _fit(kept)
    return 1.0 / slope, latency


def _fit(samples: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, float, float]:
    """(seconds per byte, latency, squared error), never a negative latency."""
    nbytes, seconds = samples[:, 0], samples[:, 1]
    spread = nbytes - nbytes.mean()
    slope, latency = 0.0, -1.0
    if spread.any():
        slope = float(spread @ seconds / (spread @ spread))
        latency = float(seconds.mean() - slope * nbytes.mean())
    if slope <= 0 or latency < 0:  # one size only, or noise larger than the latency
        slope, latency = float(nbytes @ seconds / (nbytes @ nbytes)), 0.0
    errors = seconds - latency - slope * nbytes
    return slope, latency, float(errors @ errors)
