"""The runs that references are held against: unequal devices, batch-norm on both sides, momentum.

Nothing random is left in the network, and the rates are constant: a step's outcome then depends on
weights and data alone. The two sides have rates and momenta of their own, so that neither can be
taken for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.effects import Note
from fedoptima.core.events import JobDone, Received
from fedoptima.core.jobs import Merge
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.types import SERVER, NodeId
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset
from fedoptima.data.loader import Loader
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import assemble, prepare
from fedoptima.trace.record import Record
from tests.experiments.runs import FLEET, data
from tests.methods.references import State

BATCH, SEED = 5, 7
MOST_RECORDS = 20_000  # a run that does not come to its end is a failure, not a test that hangs
ROWS: Mapping[str, range] = {"fast": range(0, 13), "middle": range(13, 44), "slow": range(44, 65)}
# They differ by less than one batch, and so they count as equal.
ALIKE: Mapping[str, range] = {"fast": range(0, 21), "middle": range(21, 44), "slow": range(44, 65)}
ALONE: Mapping[str, range] = {"only": range(0, 23)}
TRAINING = {
    "batch_size": BATCH,
    "device": {"learning_rate": 0.05, "momentum": 0.9},
    "server": {"learning_rate": 0.03, "momentum": 0.8},
}
# Rounds of about the same length: the same device is now too late, now in time.
EVEN = {
    "server": FLEET["server"],
    "devices": [
        {"name": "slow", "gflops": 0.0012, "mbps": 20.0},
        {"name": "middle", "gflops": 0.0017, "mbps": 20.0},
        {"name": "fast", "gflops": 0.0025, "mbps": 20.0},
    ],
}
# Quick links: with them the speeds alone decide who comes how often, even if all is sent around.
UNEVEN = {**FLEET, "devices": [{**device, "mbps": 20.0} for device in FLEET["devices"]]}
LIKE_ONE = {**TRAINING, "server": TRAINING["device"]}  # both sides as one optimiser would do


def network(*, batch_norm: bool = True) -> nn.Sequential:
    def norm() -> nn.Module:
        return nn.BatchNorm2d(4) if batch_norm else nn.Identity()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norm(), nn.ReLU()),
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), norm(), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
        )


def pictures() -> Dataset:
    return as_dataset(data(), data(48, seed=1))


def loaders(rows: Mapping[str, range] = ROWS, dataset: Dataset | None = None) -> dict[str, Loader]:
    dataset = dataset or pictures()
    return {
        name: Loader(dataset, torch.tensor(own), batch_size=BATCH, seed=SEED, node=name)
        for name, own in rows.items()
    }


@dataclass(frozen=True)
class Run:
    weights: State
    records: list[Record]
    auxiliary: nn.Module | None  # with its first weights

    def _of_server(self, kind: type) -> list[object]:
        events = (record.event for record in self.records if record.node == SERVER)
        return [e.job for e in events if isinstance(e, JobDone) and isinstance(e.job, kind)]

    @property
    def merges(self) -> int:
        return len(self._of_server(Merge))

    @property
    def arrivals(self) -> list[str]:
        """Who handed in, in the order of arrival at the server."""
        return [
            record.event.sender
            for record in self.records
            if record.node == SERVER
            and isinstance(record.event, Received)
            and isinstance(record.event.message, ModelUpdate)
        ]

    @property
    def refused(self) -> int:
        effects = (effect for record in self.records for effect in record.effects)
        return sum(isinstance(e, Note) and e.kind == "update refused" for e in effects)


def play(
    name: str,
    *,
    rounds: int,
    model: nn.Sequential | None = None,
    dataset: Dataset | None = None,
    rows: Mapping[str, range] = ROWS,
    fleet: Mapping[str, object] | None = None,
    training: Mapping[str, object] = TRAINING,
    split: int = 1,
    **options: object,
) -> Run:
    alone = {
        "server": FLEET["server"],
        "devices": [{"name": "only", "gflops": 0.001, "mbps": 2.0}],
    }
    table = {
        "seed": SEED,
        "model": {"name": "custom"},
        "data": {"name": "custom", "partition": {"kind": "iid"}},
        "fleet": fleet or (alone if rows is ALONE else FLEET),
        "method": {"name": name, **options},
        "training": training,
        "split": {"at": split},
        "stop": {"rounds": rounds},
    }
    given = Given(deepcopy(model or network()), dataset or pictures())
    experiment = prepare(validate(Recipe, table, "test"), given)
    shares = {NodeId(device): np.array(own) for device, own in rows.items()}
    experiment = replace(experiment, shares=shares)
    records: list[Record] = []
    assembly = assemble(experiment, [records.append])
    outcome = assembly.simulation.run(lambda: len(records) > MOST_RECORDS)
    assert outcome is not None, "the run does not come to its end"
    assert not outcome.failed, outcome.reason
    engine = assembly.server_engine
    assert isinstance(engine, ServerEngine)
    assert engine.plan is not None
    return Run(engine.export(), records, experiment.workload.sides(engine.plan).auxiliary)


def assert_equal(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Bit for bit, every buffer included."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


def assert_close(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal but for the order in which floats were added."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-4, atol=2e-6, msg=name)


def assert_statistics_moved(weights: Mapping[str, Tensor]) -> None:
    """Every batch-norm layer has seen the data: dropped buffers would be as they began."""
    kinds = {"running_mean": 0.0, "running_var": 1.0, "num_batches_tracked": 0}
    found = [name for name in weights if name.rpartition(".")[2] in kinds]
    assert found
    for name in found:
        first = torch.full_like(weights[name], kinds[name.rpartition(".")[2]])
        assert not (weights[name] == first).any(), name
    assert all((weights[name] > 0).all() for name in found if name.endswith("running_var"))
