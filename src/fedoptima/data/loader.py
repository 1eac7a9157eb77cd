"""The batches of one node. A batch depends on (seed, node, step) and on nothing that ran before.

So a step gives the same result when computed later, again after a restore, or with others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.core.seeding import derive
from fedoptima.data.dataset import Dataset


class Loader:
    """Training batches from the rows of ``dataset.train`` that ``indices`` name.

    Every local epoch is a new order of the rows. Its incomplete last batch is left out, so that
    all steps cost the same; a node with fewer samples than a batch trains on all it has.
    """

    def __init__(
        self,
        dataset: Dataset,
        indices: NDArray[np.int64] | Tensor,
        *,
        batch_size: int,
        seed: int,
        node: str,
        augment: bool = True,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch size {batch_size} of {node!r}: must be at least 1")
        if not len(indices):
            raise ConfigError(
                f"empty partition: {node!r} has no samples; use fewer devices or more data"
            )
        self._split = dataset.train
        self._prepare = dataset.prepare
        self._augment = dataset.augment if augment else None
        self._rows = torch.as_tensor(indices, dtype=torch.int64, device="cpu")
        self._batch_size = min(batch_size, len(self._rows))
        self._seed = seed
        self._node = node
        self._epoch = -1
        self._order = self._rows
        self._ahead: tuple[int, Callable[[], tuple[Tensor, Tensor]]] | None = None

    @property
    def samples(self) -> int:
        return len(self._rows)

    @property
    def per_epoch(self) -> int:
        """Steps in one local epoch."""
        return self.samples // self._batch_size

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The prepared inputs and the labels of a step, on the device where the data set is."""
        ordered = self._ahead
        draw = ordered[1] if ordered and ordered[0] == step else self._ordered(step)
        inputs, labels = draw()
        if self._split.in_advance:
            self._ahead = (step + 1, self._ordered(step + 1))
        if self._augment is not None:
            inputs = self._augment(inputs, derive(self._seed, self._node, "augment", step))
        return self._prepare(inputs), labels

    def _ordered(self, step: int) -> Callable[[], tuple[Tensor, Tensor]]:
        epoch, position = divmod(step, self.per_epoch)
        start = position * self._batch_size
        rows = self._order_of(epoch)[start : start + self._batch_size]
        return self._split.order(rows, seed=self._seed, epoch=epoch)

    def _order_of(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            seed = derive(self._seed, self._node, "order", epoch)
            order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed))
            # Moved as a whole: a batch's rows are then a slice, without a copy for each step.
            self._order = self._rows[order].to(self._split.index_device)
            self._epoch = epoch
        return self._order
