"""The batches of one node. A batch depends on (seed, node, step) and on nothing that ran before.

So a step gives the same result when computed later, again after a restore, or with others. All
random numbers of a local epoch are drawn at its beginning (`Epoch`) and moved to where the samples
are. A batch of samples in memory is from then on a function of tensors on that device and of the
step's place in the epoch (`Loader.compute`), without a copy from the host: it can be recorded in a
CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.core.seeding import derive
from fedoptima.data.dataset import Dataset, Split
from fedoptima.models.activation import Inputs, map_tensors

Batch = tuple[Inputs, Tensor]


@dataclass(frozen=True, eq=False)
class Epoch:
    """What is random in a local epoch. The first dimension is the step, the second the sample."""

    number: int
    rows: Tensor  # (steps, batch), int64: numbers of the samples, where the split takes them
    drawn: Tensor | None  # (steps, batch, n): for the augmentation, where the batches are

    def at(self, place: int) -> tuple[Tensor, Tensor | None]:
        """Rows and random numbers of one step; views, without a copy."""
        return self.rows[place], None if self.drawn is None else self.drawn[place]


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
        self._epoch: Epoch | None = None  # the one drawn last, until its last step
        self._ahead: tuple[int, Callable[[], Batch]] | None = None

    @property
    def samples(self) -> int:
        return len(self._rows)

    @property
    def batch_size(self) -> int:
        """Of every step; less than was asked for where there are fewer samples."""
        return self._batch_size

    @property
    def per_epoch(self) -> int:
        """Steps in one local epoch."""
        return self.samples // self._batch_size

    def batch(self, step: int) -> Batch:
        """The prepared inputs and the labels of a step, on the device where the data set is."""
        ordered = self._ahead
        draw = ordered[1] if ordered and ordered[0] == step else self._ordered(step)
        batch = draw()
        if self._split.in_advance:
            self._ahead = (step + 1, self._ordered(step + 1))
        return batch

    def epoch(self, number: int) -> Epoch:
        """The random numbers of a local epoch: of (seed, node, number) alone."""
        if self._epoch is None or self._epoch.number != number:
            self._epoch = self._drawn(number)
        return self._epoch

    def compute(self, rows: Tensor, drawn: Tensor | None) -> Batch:
        """The batch of these rows, of samples in memory; a function of the tensors alone.

        Both are a step's part of an `Epoch`. In a CUDA graph they are static tensors, or are
        selected by a static tensor that holds the step's place.
        """
        assert isinstance(self._split, Split)
        inputs = map_tensors(self._split.inputs, lambda tensor: tensor.index_select(0, rows))
        return self._changed(inputs, drawn), self._split.labels.index_select(0, rows)

    def labels(self, rows: Tensor) -> Tensor:
        """The labels of any number of rows, in their form."""
        assert isinstance(self._split, Split)
        labels = self._split.labels.index_select(0, rows.flatten())
        return labels.view(*rows.shape, *labels.shape[1:])

    def _ordered(self, step: int) -> Callable[[], Batch]:
        number, place = divmod(step, self.per_epoch)
        rows, drawn = self.epoch(number).at(place)
        if place == self.per_epoch - 1:
            # A device may be idle for long. Kept, these few numbers would lie amid the memory that
            # the steps of others free, and take: in a simulation it grew with every round.
            self._epoch = None
        if isinstance(self._split, Split):
            return lambda: self.compute(rows, drawn)
        draw = self._split.order(rows, seed=self._seed, epoch=number)

        def batch() -> Batch:
            inputs, labels = draw()
            return self._changed(inputs, drawn), labels

        return batch

    def _changed(self, inputs: Inputs, drawn: Tensor | None) -> Inputs:
        if self._augment is not None and drawn is not None:
            inputs = self._augment(inputs, drawn)
        prepared: Inputs = self._prepare(inputs)
        return prepared

    def _drawn(self, number: int) -> Epoch:
        steps, size = self.per_epoch, self._batch_size
        seed = derive(self._seed, self._node, "order", number)
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed))
        # Moved as a whole: what a step needs is then a slice, without a copy for each step.
        rows = self._rows[order[: steps * size]].view(steps, size).to(self._split.index_device)
        if self._augment is None:
            return Epoch(number, rows, None)
        seed = derive(self._seed, self._node, "augment", number)
        drawn = self._augment.draw(steps * size, seed).to(self._split.device)
        return Epoch(number, rows, drawn.view(steps, size, -1))
