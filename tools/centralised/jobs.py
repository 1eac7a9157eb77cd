"""Trainings side by side, a process for each lane; a process keeps the data it has loaded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from fedoptima.config.load import load_recipe
from fedoptima.config.schema import Recipe
from fedoptima.data.dataset import Dataset
from fedoptima.data.partition import hold_out
from fedoptima.data.registry import load_dataset
from tools.centralised.settings import Settings
from tools.centralised.training import Training, quick

HELD_OUT = 0.1

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    recipe: Path
    device: str
    settings: Settings
    seed: int
    tested: bool  # on all training data, judged by the test data; else by the share held out

    def __str__(self) -> str:
        what = f"seed {self.seed}" if self.tested else str(self.settings.told())
        return f"{self.recipe.stem}: {what}"


def pool_of(lanes: int) -> AbstractContextManager[Executor | None]:
    """One lane needs no other process."""
    return nullcontext() if lanes == 1 else ProcessPoolExecutor(lanes, get_context("spawn"))


def results_of(
    jobs: Sequence[Job], pool: Executor | None, lanes: int, deadline: float = float("inf")
) -> Iterator[tuple[Job, Result]]:
    """Jobs with their results, in the order in which they end; none begins after the deadline."""
    if pool is None:
        yield from ((job, train(job)) for job in jobs if time.monotonic() < deadline)
        return
    waiting, running = list(jobs), dict[Future[Result], Job]()
    while True:
        while waiting and len(running) < lanes and time.monotonic() < deadline:
            job = waiting.pop(0)
            running[pool.submit(train, job)] = job
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


def train(job: Job) -> Result:
    """Accuracy by epoch; a line on every evaluation, for those who watch."""
    recipe, dataset = _loaded(job.recipe, job.device)
    judged = dataset.test
    if not job.tested:
        dataset, judged = hold_out(dataset, HELD_OUT, recipe.seed)
    training = Training(recipe, dataset, judged, job.settings, job.seed)
    started = time.monotonic()
    result: Result = {"seconds": 0.0, "epochs": [], "accuracy": []}
    for epoch, accuracy in training.run():
        result["seconds"] = round(time.monotonic() - started, 1)
        result["epochs"].append(epoch)
        result["accuracy"].append(round(accuracy, 5))
        print(f"{job} epoch {epoch}: {accuracy:.2%}, {result['seconds']} s", flush=True)
    return result


@cache
def _loaded(path: Path, device: str) -> tuple[Recipe, Dataset]:
    quick(torch.device(device))
    recipe = load_recipe(path)
    data = recipe.data
    options: dict[str, Any] = data.options
    dataset = load_dataset(data.name, directory=data.directory, **options)
    return recipe, dataset.to(device)
