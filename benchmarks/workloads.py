"""The runs that are measured against a bare loop and against other simulators.

A workload is a recipe, so that every side takes its model, its clients' rows and its batches from
the same place. The images are CIFAR-10's where the data set is there (FEDOPTIMA_DATA), else noise
of the same format: nothing here depends on what is in them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.noise import images
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.data.dataset import Dataset, Split
from fedoptima.data.registry import load_dataset

LEARNING_RATE, MOMENTUM = 0.01, 0.9


@dataclass(frozen=True)
class Workload:
    clients: int
    samples: int  # of each client
    batch: int
    rounds: int = 5
    method: str = "fl"
    on_leave: str = ""  # as the method has it; "drop": all updates of a round are kept
    keeps_momentum: bool = True  # from one round to the next; other simulators' clients do not

    @property
    def steps(self) -> int:
        """Of a client in a round. An incomplete last batch is left out."""
        return self.samples // min(self.batch, self.samples)

    def __str__(self) -> str:
        return (
            f"{self.method}, {self.clients} clients x {self.samples} images, VGG-5, "
            f"batch {self.batch}, {self.rounds} rounds"
        )


WORKLOADS = {
    "fl_16x500": Workload(clients=16, samples=500, batch=50),
    "fl_128x62": Workload(clients=128, samples=62, batch=50),
    "fl_128x62_drop": Workload(clients=128, samples=62, batch=50, on_leave="drop"),
    "fl_128x2": Workload(clients=128, samples=2, batch=2),
}


def recipe(workload: Workload, data: Path, **more: object) -> Recipe:
    """``more``: further keys of the recipe; those that this version does not have are left out."""
    optimizer = {
        "learning_rate": LEARNING_RATE,
        "momentum": MOMENTUM,
        "reset_on_load": not workload.keeps_momentum,
    }
    keys = {
        "name": "benchmark",
        "threads": 1,  # of a job's; every side computes with one for each client
        "model": {"name": "vgg5"},
        "data": {
            "name": "benchmarks.workloads:stored_images",
            "file": str(data),
            "partition": {"kind": "iid"},
        },
        "fleet": {
            "server": {"gflops": 150.0},
            "devices": [{"name": "client", "count": workload.clients, "gflops": 5.0}],
        },
        "method": {
            "name": workload.method,
            **({"on_leave": workload.on_leave} if workload.on_leave else {}),
        },
        "training": {
            "batch_size": workload.batch,
            "device": optimizer,
            "server": {**optimizer, "reset_on_load": False},
            "evaluate_every": 1000.0,  # once, at the end, as in every run; all sides do it
        },
        "stop": {"rounds": workload.rounds},
    }
    known = {key: value for key, value in more.items() if key in Recipe.model_fields}
    return validate(Recipe, {**keys, **known}, "benchmark")


def store_images(workload: Workload, file: Path) -> str:
    """Write the workload's images to a file, before any clock runs; returns what they are."""
    samples = workload.clients * workload.samples
    dataset, what = images(samples=samples), "noise"
    if os.environ.get("FEDOPTIMA_DATA"):
        cifar, what = load_dataset("cifar10"), "CIFAR-10"
        train, test = cifar.train.read(), cifar.test
        dataset = replace(dataset, train=_first(train, samples), test=_first(test, samples // 10))
    train, test = dataset.train.read(), dataset.test
    torch.save([train.inputs, train.labels, test.inputs, test.labels], file)
    return what


def stored_images(file: str) -> Dataset:
    train, train_labels, test, test_labels = torch.load(file)
    form = images(samples=1)  # how noise is prepared and augmented is how CIFAR-10 is
    return replace(form, train=Split(train, train_labels), test=Split(test, test_labels))


def warm_up() -> None:
    """Load what torch loads when an optimiser first steps, its compiler: a second, on any side."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([weight], LEARNING_RATE, MOMENTUM)
    optimizer.step()
    optimizer.zero_grad()


def _first(split: Split, count: int) -> Split:
    return Split(split.inputs[: max(10, count)].clone(), split.labels[: max(10, count)].clone())
