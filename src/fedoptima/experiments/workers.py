"""How many processes do the tensor work of a simulation."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.engine.workload import Workload

# Parameters times samples of a batch. With less, telling a worker what to do takes about as long
# as doing it (some 0.3 ms).
LEAST_WORK = 1_000_000


def workers_for(recipe: Recipe, workload: Workload, batches: list[int]) -> int:
    """As the recipe says; 1: the process that drives does it itself.

    "auto": one for each core, if a job is worth sending to another process. Not where the maths
    runs on a GPU or could (torch's autograd does not survive a fork if it has seen one), and not in
    a process of `compare` or `sweep`, which use all cores already.
    """
    if workload.compute.type != "cpu" or multiprocessing.current_process().daemon:
        return 1
    if recipe.split.per_device:  # workers have one plan for all devices
        return 1
    if recipe.workers != "auto":
        return _possible(recipe.workers, recipe.threads or 1)
    parameters = sum(parameter.numel() for parameter in workload.model.parameters())
    large = parameters * max(batches, default=0) >= LEAST_WORK
    if not large or not can_fork(recipe.threads or 0):
        return 1
    return max(1, min(len(os.sched_getaffinity(0)), len(batches)))


def _possible(workers: int, threads: int) -> int:
    if workers > 1 and threads > 1:
        raise ConfigError(
            f"workers = {workers}: each computes with one torch thread, but threads = {threads}; "
            "use threads = 1, or workers = 1"
        )
    if workers > 1 and not _can_fork():
        raise ConfigError(
            f"workers = {workers}: processes cannot be forked on this system; use workers = 1"
        )
    return workers


def can_fork(threads: int) -> bool:
    """Whether a process that trains may be forked from this one, whatever this one has done."""
    return threads == 1 and not torch.cuda.is_available() and _can_fork()


@contextmanager
def quiet_fork() -> Iterator[None]:
    """Python 3.12 and later warn that other threads are not in the new process. They are those of
    views and trackers, which workers have nothing to do with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods() and hasattr(os, "sched_getaffinity")
