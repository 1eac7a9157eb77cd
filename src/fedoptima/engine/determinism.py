"""The same recipe and seed give the same weights, bit for bit, on the same kind of machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fedoptima.config.training import Precision
from fedoptima.engine.precision import set_products

_WARN = 1  # torch's number for it


@contextmanager
def deterministic(threads: int | None = None, precision: Precision = "float32") -> Iterator[None]:
    """Reproducible kernels, gradients, and an untouched global generator, for the time of a run."""
    threads_before = torch.get_num_threads()
    products = torch.get_float32_matmul_precision()
    before = torch.get_deterministic_debug_mode()
    cudnn = torch.backends.cudnn
    flags = (cudnn.deterministic, cudnn.benchmark)
    memory = torch.utils.deterministic  # torch has no types for its one setting
    fills = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    devices = list(range(torch.cuda.device_count()))
    # A notebook that only evaluates may have turned gradients off for good.
    with torch.random.fork_rng(devices=devices), torch.inference_mode(False), torch.enable_grad():
        # Warn: an operation without a deterministic kernel must not make a model unusable.
        _set_mode(_WARN)
        cudnn.deterministic, cudnn.benchmark = True, False
        memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # never read here
        set_products(precision)
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads_before)
            torch.set_float32_matmul_precision(products)
            _set_mode(before)
            cudnn.deterministic, cudnn.benchmark = flags
            memory.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def _set_mode(mode: int) -> None:
    """Not `torch.use_deterministic_algorithms`, which loads the compiler to set it, too: that takes
    as long as loading torch. The compiler is set if somebody else has loaded it."""
    torch.set_deterministic_debug_mode(mode)
    if "torch._dynamo" in sys.modules:
        import torch._inductor.config as compiler

        compiler.deterministic = mode > 0


def prepare_thread(threads: int | None = None) -> None:
    """Call this first on any thread other than the main one that computes.

    The flags of `deterministic` apply to the whole process, but OpenMP and MKL keep the number of
    helper threads per calling thread, sums depend on that number, and a new thread would use as
    many as there are cores. None: as many as the process is set to.
    """
    torch.set_num_threads(torch.get_num_threads() if threads is None else threads)


# Of torch's own layers those that most models are made of. Of any other nobody knows.
_DRAW_NOTHING = frozenset(
    (
        *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten),
        *(nn.Linear, nn.Bilinear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish),
        *(nn.Sigmoid, nn.Tanh, nn.Softmax, nn.LogSoftmax, nn.BatchNorm1d, nn.BatchNorm2d),
        *(nn.LayerNorm, nn.GroupNorm, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    )
)


def draws_nothing(model: nn.Module) -> bool:
    """It is known that the model draws no random numbers."""
    return all(
        type(part) in _DRAW_NOTHING and not (part._forward_hooks or part._forward_pre_hooks)
        for part in model.modules()
    )


def draws_in_recurrent_layers(model: nn.Module) -> bool:
    """On a GPU all of torch's recurrent layers draw dropout from one state: recorded steps of
    several devices would use it at the same time."""
    return any(isinstance(part, nn.RNNBase) and part.dropout > 0 for part in model.modules())


def seed_step(seed: int, compute: torch.device) -> None:
    """Seed what dropout draws from.

    Not torch.manual_seed: without a GPU that stores a call stack for every call.
    """
    if compute.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
