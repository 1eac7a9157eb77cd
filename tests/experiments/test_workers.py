"""How many processes do the tensor work of a simulation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.data.custom import as_dataset
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import Experiment, prepare
from tests.experiments.runs import FLEET, TRAINING, data, network, run

LARGE = nn.Sequential(nn.Flatten(), nn.Linear(16, 5000), nn.Linear(5000, 30), nn.Linear(30, 3))
CORES = len(os.sched_getaffinity(0))


def experiment(model: nn.Module, **keys: object) -> Experiment:
    table = {
        "model": {"name": "custom"},
        "data": {"name": "custom", "partition": {"kind": "iid"}},
        "fleet": FLEET,
        "training": TRAINING,
        "stop": {"epochs": 1.0},
        **keys,
    }
    return prepare(validate(Recipe, table, "test"), Given(model, as_dataset(data(), data(48))))


def test_there_is_a_worker_for_each_core_if_a_batch_is_much_work() -> None:
    expected = 1 if torch.cuda.is_available() else min(CORES, 3)
    assert experiment(LARGE).workers == expected


@pytest.mark.parametrize(
    ("model", "keys"), [(network(), {}), (LARGE, {"threads": 2}), (LARGE, {"workers": 1})]
)
def test_there_is_none_otherwise(model: nn.Module, keys: dict[str, object]) -> None:
    assert experiment(model, **keys).workers == 1


def test_a_number_is_taken_as_it_is() -> None:
    assert experiment(network(), workers=3).workers == 3


@pytest.fixture
def many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("many_threads")
def test_a_simulation_computes_with_one_thread_unless_the_recipe_says_otherwise() -> None:
    assert experiment(network()).recipe.threads == 1
    assert experiment(network(), threads=2).recipe.threads == 2


def test_the_number_is_no_part_of_what_a_run_stores(tmp_path: Path) -> None:
    run(workers=2, epochs=0.5, out=tmp_path / "two")
    run(workers=1, epochs=0.5, out=tmp_path / "one")
    stored = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("one", "two")]
    assert stored[0] == stored[1]
    assert "workers" not in stored[0]["recipe"]
