"""The same recipe and seed give the same weights, bit for bit, on the same kind of machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic() -> Iterator[None]:
    """Reproducible kernels and an untouched global generator, for the time of a run."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    flags = (cudnn.deterministic, cudnn.benchmark)
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        # warn_only: an operation without a deterministic kernel must not make a model unusable.
        torch.use_deterministic_algorithms(True, warn_only=True)
        cudnn.deterministic, cudnn.benchmark = True, False
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
            cudnn.deterministic, cudnn.benchmark = flags


def seed_step(seed: int, compute: torch.device) -> None:
    """Seed what dropout draws from.

    Not torch.manual_seed: without a GPU that keeps a call stack for every call, for later.
    """
    if compute.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
