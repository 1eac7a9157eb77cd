"""The engine of a device, with the batches of its rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedoptima.config.schema import Recipe
from fedoptima.core.types import NodeId
from fedoptima.data.loader import Loader
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.workload import Workload

BuildEngine = Callable[[Recipe, Workload, NodeId, NDArray[np.int64]], DeviceEngine]


def device_engine(
    recipe: Recipe,
    workload: Workload,
    device: NodeId,
    rows: NDArray[np.int64],
    *,
    deferred: bool = False,
) -> DeviceEngine:
    """``deferred``: for a simulation, in which the executor checks the losses."""
    loader = device_loader(recipe, workload, device, rows)
    return DeviceEngine(workload, device, loader, deferred=deferred)


def device_loader(
    recipe: Recipe,
    workload: Workload,
    device: NodeId,
    rows: NDArray[np.int64],
    kind: type[Loader] = Loader,
) -> Loader:
    return kind(
        workload.dataset,
        rows,
        batch_size=recipe.training.batch_size,
        seed=recipe.seed,
        node=device,
        augment=recipe.data.augment,
    )
