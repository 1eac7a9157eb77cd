"""What each device holds out of its own data (`data.device_validation`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.seeding import derive
from fedoptima.core.types import NodeId
from fedoptima.engine.workload import Workload

Rows = NDArray[np.int64]


def trained_and_held(recipe: Recipe, device: NodeId, rows: Rows) -> tuple[Rows, Rows]:
    """The rows that a device trains on, and those that it is measured on."""
    share = recipe.data.device_validation
    if share is None:
        return rows, rows[:0]
    if len(rows) < 2:
        raise ConfigError(
            f"data.device_validation = {share:g}: {device} has one sample only, and needs one to "
            "train on and one to be measured on; use fewer devices, more data, or another partition"
        )
    count = min(max(1, round(share * len(rows))), len(rows) - 1)
    random = np.random.default_rng(derive(recipe.seed, "device_validation", device))
    held = np.zeros(len(rows), dtype=bool)
    held[random.permutation(len(rows))[:count]] = True
    return rows[~held], rows[held]


def divided(
    recipe: Recipe, shares: Mapping[NodeId, Rows]
) -> tuple[dict[NodeId, Rows], dict[NodeId, Rows]]:
    parts = {device: trained_and_held(recipe, device, rows) for device, rows in shares.items()}
    return (
        {device: trained for device, (trained, _) in parts.items()},
        {device: held for device, (_, held) in parts.items()},
    )


def measured_on(workload: Workload, held: Mapping[NodeId, Rows]) -> Workload:
    """The same, evaluated on these rows of its training data, too."""
    train = workload.dataset.train
    splits = {
        device: train.take(torch.as_tensor(rows).to(train.index_device)).read().to(workload.compute)
        for device, rows in held.items()
    }
    return replace(workload, device_validation=splits)
