"""Runs on data in the forms that users have: by device, by column, from Hugging Face, streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedoptima.config.load import validate
from fedoptima.config.schema import PartitionConfig, Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.types import NodeId
from fedoptima.experiments.given import Given, custom_table, given_data
from fedoptima.experiments.result import Result
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.setup import Experiment, prepare
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import resume
from tests.experiments.runs import FLEET, TRAINING, data, network, run
from tests.experiments.test_interrupted import after

NAMES = ("slow", "middle", "fast")
SIZES = {"slow": 24, "middle": 16, "fast": 56}
METHODS = pytest.mark.parametrize("method", ["fedoptima", "fl"])


def by_device() -> dict[str, tuple[Tensor, Tensor]]:
    inputs, labels = data()
    parts = zip(inputs.split(list(SIZES.values())), labels.split(list(SIZES.values())), strict=True)
    return dict(zip(NAMES, parts, strict=True))


def as_rows() -> datasets.Dataset:
    """The usual pictures as columns, with who made them."""
    inputs, labels = data()
    who = [f"w{row % 5}" for row in range(len(labels))]
    return datasets.Dataset.from_dict(
        {"picture": inputs.numpy(), "label": labels.tolist(), "writer": who}
    )


BY_WRITER: dict[str, object] = {
    "features": ["picture"],
    "partition": {"kind": "column", "column": "writer"},
}


def on_rows(**changes: object) -> Result:
    return run(train=as_rows(), data=BY_WRITER, **changes)


def experiment(train: object, table: dict[str, object], *, dry: bool = False) -> Experiment:
    """The run of these data, not yet started."""
    parts = {
        "model": {"name": "custom"},
        "fleet": FLEET,
        "training": TRAINING,
        "stop": {"epochs": 1},
    }
    dataset = given_data(train, data(48, seed=1), table)
    assert dataset is not None
    parts["data"] = custom_table(dataset, table)
    return prepare(validate(Recipe, parts, "here"), Given(network(), dataset), dry=dry)


def test_each_device_holds_what_was_given_for_it() -> None:
    planned = experiment(by_device(), {})
    assert planned.samples == SIZES
    inputs = planned.workload.dataset.train.read().tensor
    for device, (own, _) in by_device().items():
        assert torch.equal(inputs[torch.from_numpy(planned.shares[NodeId(device)])], own)


@METHODS
def test_data_by_device_train_alike_in_one_process_and_in_several(method: str) -> None:
    digests = {
        run(train=by_device(), data=None, method=method, workers=workers, epochs=1).weights_digest
        for workers in (1, 2)
    }
    assert len(digests) == 1


def test_data_by_device_are_recorded_as_the_partition_of_a_run(tmp_path: Path) -> None:
    unbroken = run(train=by_device(), data=None)
    with pytest.raises(Interrupted):
        run(train=by_device(), data=None, out=tmp_path / "run", interrupted=after(60))
    _, recipe, _ = RunDirectory.open(tmp_path / "run")
    assert recipe.data.partition == PartitionConfig(kind="column", column="device")
    again = resume(tmp_path / "run", model=network(), train=by_device(), test=data(48, seed=1))
    assert again.weights_digest == unbroken.weights_digest


def test_a_partition_that_is_asked_for_wins_over_data_by_device() -> None:
    planned = experiment(by_device(), {"partition": {"kind": "iid"}})
    assert set(planned.samples.values()) == {32}


def test_devices_that_are_not_in_the_fleet_are_named() -> None:
    parts = by_device()
    parts["other"] = parts.pop("fast")
    with pytest.raises(ConfigError, match=r"samples of other in 'device'.* not in the fleet"):
        run(train=parts, data=None)


def test_data_of_devices_that_are_all_unknown_are_not_dealt_out_among_the_others() -> None:
    parts = {f"other {name}": part for name, part in by_device().items()}
    with pytest.raises(ConfigError, match=r"other slow.* not in the fleet; it has slow, middle"):
        run(train=parts, data=None)


@METHODS
def test_rows_are_divided_by_who_made_them(method: str) -> None:
    results = [on_rows(method=method, workers=workers, epochs=1) for workers in (1, 2)]
    assert results[0].weights_digest == results[1].weights_digest
    held = experiment(as_rows(), BY_WRITER).samples
    assert sorted(held.values()) == [20, 38, 38]  # five writers of 19 or 20 on three devices


def test_a_run_on_rows_resumes_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    unbroken = on_rows()
    with pytest.raises(Interrupted):
        on_rows(out=tmp_path / "run", interrupted=after(60))
    again = resume(tmp_path / "run", model=network(), train=as_rows(), test=data(48, seed=1))
    assert again.weights_digest == unbroken.weights_digest


@METHODS
def test_loaders_and_streams_train_as_the_tensors_in_them(method: str) -> None:
    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        return zip(*data(), strict=True)

    digests = {
        run(train=train, method=method, epochs=1).weights_digest
        for train in (data(), DataLoader(TensorDataset(*data()), batch_size=4), stream())
    }
    assert len(digests) == 1


@pytest.mark.slow  # each process loads torch
def test_rows_may_be_drawn_in_other_processes() -> None:
    drawn = {**BY_WRITER, "workers": 2}
    digests = {
        run(train=as_rows(), data=table, method="fl", epochs=1).weights_digest
        for table in (BY_WRITER, drawn)
    }
    assert len(digests) == 1


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, picture: Tensor, weight: Tensor) -> Tensor:
        return self.head(self.body(picture.flatten(1)) * weight)


def test_columns_are_inputs_by_name() -> None:
    columns = as_rows().add_column("weight", np.ones((96, 1)).tolist())
    test = columns.select(range(12))
    result = run(
        model=TwoInputs(),
        train=columns,
        test=test,
        data={"features": ["picture", "weight"], "partition": {"kind": "iid"}},
        method="fl",
        split=None,
        epochs=1,
    )
    assert result.accuracy is not None


@pytest.mark.parametrize(
    ("partition", "sizes"),
    [
        ({"kind": "label", "labels": 1}, [32, 32, 32]),
        ({"kind": "quantity", "shares": [1, 2, 5]}, [12, 24, 60]),
        ({"kind": "quantity", "power": 1.0}, [18, 26, 52]),
        ({"kind": "iid"}, [32, 32, 32]),
    ],
)
def test_every_partition_works_dry_and_for_real(
    partition: dict[str, object], sizes: list[int]
) -> None:
    table: dict[str, object] = {"partition": partition}
    for dry in (True, False):
        assert sorted(experiment(data(), table, dry=dry).samples.values()) == sizes
    assert run(data=table, dry=True, method="fl", epochs=1).epochs == pytest.approx(1, abs=0.3)


def test_shares_have_to_fit_the_fleet() -> None:
    with pytest.raises(ConfigError, match="2 shares for 3 devices; give one for each"):
        run(data={"partition": {"kind": "quantity", "shares": [1, 2]}})


def test_a_column_that_is_not_there_is_named() -> None:
    table = {"features": ["picture"], "partition": {"kind": "column", "column": "author"}}
    with pytest.raises(ConfigError, match=r"no such column; it has picture, label, writer"):
        run(train=as_rows(), data=table)
    with pytest.raises(ConfigError, match="no such column; it has none"):
        run(data={"partition": {"kind": "column", "column": "author"}})


def test_validation_data_are_held_out_before_columns_divide_the_rest() -> None:
    planned = experiment(as_rows(), {**BY_WRITER, "validation": 0.25})
    assert sum(planned.samples.values()) == 72
    columns = planned.workload.dataset.columns
    assert columns is not None
    writers = columns.read("writer")
    owners = [{writers[row] for row in rows} for rows in planned.shares.values()]
    assert sum(len(owner) for owner in owners) == 5
