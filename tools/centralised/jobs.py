"""One training of the grid, or of the best configuration; a process keeps the data it loaded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
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
from tools.lanes import Result

HELD_OUT = 0.1


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
