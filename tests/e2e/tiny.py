"""A network and data so small that a round takes milliseconds, named by import path in recipes.

Nothing random is left in the network: nodes of one test may share a process, and with it torch's
generator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset

CLASSES = 3
SIDE = 4  # pixels


def model(channels: int, image_size: int, classes: int, width: int = 4) -> nn.Module:
    def block(inputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )

    last = nn.Sequential(nn.Flatten(), nn.Linear(width * image_size**2, classes))
    return nn.Sequential(block(channels), block(width), last)


class Picky(nn.Module):
    """Raises IndexError for values of 100 and more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.table[(inputs.detach().abs().amax() / 100).long()]


class Exploding(nn.Module):
    """Infinite for values of 150 and more, and very close to nothing for others."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (1 + (inputs.detach().abs().amax() - 50).exp())


def picky(channels: int, image_size: int, classes: int) -> nn.Module:
    first, *others = model(channels, image_size, classes).children()
    return nn.Sequential(first, nn.Sequential(Picky(), others[0]), others[1])


def exploding(channels: int, image_size: int, classes: int) -> nn.Module:
    first, *others = model(channels, image_size, classes).children()
    return nn.Sequential(first, nn.Sequential(Exploding(), others[0]), others[1])


def data(samples: int = 96, side: int = SIDE, tests: int = 48, noise: float = 0.7) -> Dataset:
    return as_dataset(
        pictures(samples, side, seed=0, noise=noise), pictures(tests, side, seed=1, noise=noise)
    )


def pictures(
    samples: int, side: int = SIDE, *, seed: int, noise: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Noisy pictures of a few kinds that can be told apart."""
    labels = torch.arange(samples) % CLASSES
    ideal = torch.randn(CLASSES, 1, side, side, generator=torch.Generator().manual_seed(99))
    random = torch.randn(samples, 1, side, side, generator=torch.Generator().manual_seed(seed))
    return ideal[labels] + noise * random, labels
