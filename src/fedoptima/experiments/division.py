"""The training data divided among the devices as a recipe's ``data.partition`` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from torch import Tensor

from fedoptima.config.schema import PartitionConfig
from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Dataset
from fedoptima.data.partition import Indices, by_file, dirichlet, iid
from fedoptima.data.partition_by import by_group, by_label, by_quantity, power_law


def divide(
    dataset: Dataset, config: PartitionConfig, devices: Sequence[str], seed: int
) -> list[Indices]:
    """Row numbers of the training data, one array for each device."""
    samples, count = len(dataset.train), len(devices)
    match config.kind:
        case "dirichlet":
            return dirichlet(_classes(dataset, config), count, alpha=config.alpha, seed=seed)
        case "iid":
            return iid(samples, count, seed=seed)
        case "label":
            assert config.labels is not None
            classes = _classes(dataset, config)
            return by_label(classes, count, labels_each=config.labels, seed=seed)
        case "quantity":
            return by_quantity(samples, _shares(config, count, seed), seed=seed)
        case "column":
            assert config.column is not None
            values = _column(dataset, config.column)
            by_device = dataset.columns is not None and dataset.columns.by_device
            return by_group(values, devices, seed=seed, column=config.column, by_device=by_device)
        case "file":
            assert config.file is not None
            return by_file(config.file, devices=devices, samples=samples)
    assert_never(config.kind)


def _classes(dataset: Dataset, config: PartitionConfig) -> Tensor:
    key = f"data.partition.kind = {config.kind!r}"
    return dataset.task.class_labels(dataset.train.labels, key)


def _shares(config: PartitionConfig, devices: int, seed: int) -> Sequence[float]:
    if config.power is not None:
        return power_law(devices, config.power, seed=seed)
    assert config.shares is not None
    if len(config.shares) != devices:
        raise ConfigError(
            f"data.partition.shares: {len(config.shares)} shares for {devices} devices; give one "
            "for each, in the order of the fleet"
        )
    return config.shares


def _column(dataset: Dataset, name: str) -> list[object]:
    names = dataset.columns.names if dataset.columns is not None else ()
    if dataset.columns is None or name not in names:
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise ConfigError(
            f"data.partition.column = {name!r}: data set {dataset.name!r} has no such column; {has}"
        )
    return dataset.columns.read(name)
