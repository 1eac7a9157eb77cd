"""Images of noise, for measurements in which nothing is to be learnt."""

from __future__ import annotations

import torch

from fedoptima.data.augment import CropAndFlip
from fedoptima.data.dataset import Dataset, Normalise, Split, image_facts


def images(*, samples: int, size: int = 32, channels: int = 3, augmented: bool = True) -> Dataset:
    """``samples`` for training, in CIFAR-10's format, and a tenth as many for testing."""
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        shape = (count, channels, size, size)
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        return Split(pixels, torch.arange(count) % 10)

    train, test = split(samples), split(max(10, samples // 10))
    return Dataset(
        name="noise",
        kind="image",
        train=train,
        test=test,
        classes=10,
        facts=image_facts(train.inputs, 10),
        prepare=Normalise((0.5,) * channels, (0.25,) * channels),
        augment=CropAndFlip(padding=4, flip=True) if augmented else None,
    )
