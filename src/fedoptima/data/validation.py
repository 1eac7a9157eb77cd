"""A validation part held out of the training data, for those who keep the test set untouched.

The paper describes no validation set; its recipes validate on the test set and say so.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedoptima.core.errors import ConfigError
from fedoptima.core.seeding import derive
from fedoptima.data.dataset import Dataset, Split


def hold_out(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Split]:
    """The data set with less training data, and the validation split taken out of it.

    Stratified: ``share`` of every class, rounded, but never all of a class.
    """
    if not 0 < share < 1:
        raise ConfigError(
            f"data.validation = {share}: must be a share of the training data above 0 and below 1, "
            'or "test" to validate on the test set'
        )
    labels = dataset.train.labels.cpu()
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(dataset.classes):
        rows = torch.nonzero(labels == label).flatten()
        count = min(round(share * len(rows)), len(rows) - 1)
        if count > 0:
            generator = torch.Generator().manual_seed(derive(seed, "validation", label))
            held[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    if not held.any():
        raise ConfigError(
            f"data.validation = {share}: holds out no sample of the {len(labels)}; use a larger "
            "share or more data"
        )
    keep, take = (
        torch.nonzero(mask).flatten().to(dataset.train.labels.device) for mask in (~held, held)
    )
    return replace(dataset, train=dataset.train.take(keep)), dataset.train.take(take)
