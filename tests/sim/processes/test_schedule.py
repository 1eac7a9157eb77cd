"""What two workers lose by waiting, in modelled time: workers only let time pass."""

from __future__ import annotations

import pytest

from benchmarks.modelled_workers import ModelledCrew, bound, model
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.data.custom import as_dataset
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import prepare
from tests.experiments.runs import TRAINING, data, network

STEP = {"Forward": 0.025, "AuxiliaryStep": 0.025, "FullStep": 0.05, "Backward": 0.025}
LOADS = {"the server's steps are short": 0.01, "the server's steps are long": 0.2}


def run(method: str, **seconds: float) -> ModelledCrew:
    """Eight devices, ten batches each, three rounds."""
    table = {
        "model": {"name": "custom"},
        "data": {"name": "custom", "partition": {"kind": "iid"}},
        "fleet": {
            "server": {"gflops": 0.05},
            "devices": [{"name": "device", "count": 8, "gflops": 0.002, "mbps": 20.0}],
        },
        "method": {"name": method},
        "training": {**TRAINING, "batch_size": 4},
        "split": {"at": 1},
        "stop": {"rounds": 3},
    }
    given = Given(network(), as_dataset(data(320), data(48, seed=1)))
    return model(prepare(validate(Recipe, table, "test"), given), {**STEP, **seconds})


@pytest.mark.parametrize("server", LOADS)
def test_two_workers_hardly_wait_for_each_other_in_fedoptima(server: str) -> None:
    pool = run("fedoptima", ServerStep=LOADS[server])
    assert pool.now <= 1.1 * bound(pool)


def test_two_workers_hardly_wait_for_each_other_in_fl() -> None:
    pool = run("fl")
    assert pool.now <= 1.1 * bound(pool)
