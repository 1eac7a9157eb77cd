"""Small runs for tests: three uneven devices, a network with batch-norm, little data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.events import Evaluated
from fedoptima.data.custom import as_dataset
from fedoptima.experiments.given import Given
from fedoptima.experiments.result import Result
from fedoptima.experiments.setup import Assembly, assemble, prepare
from fedoptima.experiments.simulation import simulate
from fedoptima.trace.record import Record

Options = Mapping[str, object]

FLEET: Options = {
    "server": {"gflops": 0.05},
    "devices": [
        {"name": "slow", "gflops": 0.001, "mbps": 2.0},
        {"name": "middle", "gflops": 0.002, "mbps": 2.0, "latency_ms": 2.0},
        {"name": "fast", "gflops": 0.006, "mbps": 2.0},
    ],
}
COSTS: Options = {"memory_gb_s": 0.01, "overhead_ms": 1.0, "serialization_gb_s": 0.001}
# All that a node can pay for, and a server's link that three devices have to share.
CHARGED: Options = {
    "server": {"gflops": 0.05, "mbps": 1.0, **COSTS},
    "devices": [
        {"name": name, "gflops": speed, "mbps": 2.0, **COSTS}
        for name, speed in (("slow", 0.001), ("middle", 0.002), ("fast", 0.006))
    ],
}
CHURN: Options = {"every": 0.05, "leave_probability": 0.3, "mbps": [1.0, 3.0]}
TRAINING: Options = {
    "batch_size": 8,
    "device": {"learning_rate": 0.05, "momentum": 0.9},
    "server": {"learning_rate": 0.05, "momentum": 0.9},
    "schedule": {"kind": "cosine"},
}


def data(count: int = 96, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three kinds of noisy 1 x 4 x 4 pictures that can be told apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    ideal = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(99))
    return ideal[labels] + 0.7 * torch.randn(count, 1, 4, 4, generator=generator), labels


def network(seed: int = 3) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 3)),
        )


class Poison(nn.Module):
    """Makes NaN of large values."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 30, torch.nan, x)


def arguments(**changes: object) -> dict[str, object]:
    """What `simulate` is given, unless a test wants something else."""
    usual: dict[str, object] = {
        "model": network(),
        "train": data(),
        "test": data(48, seed=1),
        "data": {"partition": {"kind": "iid"}},
        "fleet": FLEET,
        "method": "fedoptima",
        "training": TRAINING,
        "split": {"at": 1},
        "epochs": 3.0,
        "seed": 1,
    }
    return {**usual, **changes}


def run(**changes: object) -> Result:
    return simulate(**arguments(**changes))  # type: ignore[arg-type]


def set_up(
    records: list[Record], *, dry: bool = False, graphs: bool = True, **parts: object
) -> Assembly:
    """The same run, but in the test's own hands; ``records`` fills as it goes."""
    table = {
        "model": {"name": "custom"},
        "data": {"name": "custom", "partition": {"kind": "iid"}},
        "fleet": FLEET,
        "method": {"name": "fedoptima"},
        "training": TRAINING,
        "split": {"at": 1},
        "stop": {"epochs": 3.0},
        **parts,
    }
    given = Given(network(), as_dataset(data(), data(48, seed=1)))
    experiment = prepare(validate(Recipe, table, "test"), given)
    return assemble(experiment, [records.append], dry=dry, graphs=graphs)


def without_metrics(record: Record) -> Record:
    if isinstance(record.event, Evaluated):
        return replace(record, event=replace(record.event, metrics=()))
    return record
