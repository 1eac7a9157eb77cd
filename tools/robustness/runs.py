"""One simulated run with some hostile devices: how accurate the model is in the end."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import torch

from fedoptima.config.load import load_recipe, validate
from fedoptima.config.schema import Recipe
from fedoptima.core.effects import Note, NoteKind
from fedoptima.core.errors import Stalled
from fedoptima.core.events import Evaluated
from fedoptima.core.robust import RobustBarrier
from fedoptima.core.seeding import derive
from fedoptima.core.types import NodeId
from fedoptima.data.dataset import Dataset
from fedoptima.data.registry import load_dataset
from fedoptima.engine.determinism import deterministic
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import assemble, prepare
from fedoptima.methods.registry import find_method
from fedoptima.sim.fleet import build_fleet
from fedoptima.trace.record import Record
from tools.lanes import Result
from tools.robustness.attacks import engines_with

OPTIONS: tuple[str, ...] = get_args(RobustBarrier)


@dataclass(frozen=True)
class Job:
    recipe: str
    device: str
    method: str
    attack: str
    option: str  # of method.robust
    seed: int
    epochs: float
    hostile: int
    strength: float

    def __str__(self) -> str:
        return f"{self.method}, {self.attack}, {self.option}, seed {self.seed}"


def has_option(method: str, option: str) -> bool:
    """Trimmed means and medians need a barrier."""
    return option in get_args(get_type_hints(find_method(method))["robust"])


def run(job: Job) -> Result:
    torch.set_num_threads(1)
    recipe = _recipe(job)
    experiment = prepare(recipe, Given(dataset=_data(job.recipe, job.device)))
    devices = sorted(build_fleet(recipe.fleet, recipe.seed).devices)
    drawn = random.Random(derive(job.seed, "hostile")).sample(devices, job.hostile)
    hostile = sorted(drawn) if job.attack != "none" else []
    curve: list[float] = []
    refused: Counter[NodeId] = Counter()

    def observe(record: Record) -> None:
        if isinstance(record.event, Evaluated):
            curve.append(round(dict(record.event.metrics)["accuracy"], 5))
        for effect in record.effects:
            if isinstance(effect, Note) and effect.kind == NoteKind.OUTLIER_REFUSED:
                refused[effect.about] += 1

    started = time.monotonic()
    build = engines_with(frozenset(hostile), job.attack, job.strength)
    with deterministic(1):
        simulation = assemble(experiment, [observe], build_engine=build).simulation
        try:
            outcome = simulation.run()
            ended = outcome.reason if outcome is not None and outcome.failed else ""
        except Stalled as error:
            ended = str(error)
    of_hostile = sum(refused[device] for device in drawn)
    return {
        "accuracy": curve[-1] if curve else 0.0,
        "best": max(curve, default=0.0),
        "refused": {"hostile": of_hostile, "honest": refused.total() - of_hostile},
        "devices": hostile,
        "seconds": round(time.monotonic() - started, 1),
        **({"ended": ended[:200]} if ended else {}),
    }


def _recipe(job: Job) -> Recipe:
    plain = load_recipe(job.recipe).model_dump(exclude_unset=True)
    plain |= {
        "seed": job.seed,
        "device": job.device,
        "threads": 1,
        "method": {"name": job.method, "robust": job.option},
        "stop": {"epochs": job.epochs},
    }
    return validate(Recipe, plain, job.recipe)


@cache
def _data(recipe: str, device: str) -> Dataset:
    data = load_recipe(Path(recipe)).data
    return load_dataset(data.name, directory=data.directory, **data.options).to(device)
