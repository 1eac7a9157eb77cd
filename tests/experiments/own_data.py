"""A device's own data, named by import path: training data alone, in several forms."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from tests.e2e.tiny import CLASSES, SIDE


def tensors() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(24, 1, SIDE, SIDE, generator=generator), torch.arange(24) % (CLASSES - 1)


def loader() -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*tensors()), batch_size=5, shuffle=True)
