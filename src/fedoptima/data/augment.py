"""Standard augmentation. Of images it moves pixels and never makes new values (besides the zero
border); of texts it hides words.

The random numbers come from the seed alone and are drawn on the CPU, a few for each sample and for
a whole epoch at once; what is done with them is computed where the samples are. So a batch on a
GPU gets exactly the crops that it gets on a CPU, and no copy between the two for each batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedoptima.data.vocabulary import PADDING, UNKNOWN


@dataclass(frozen=True)
class CropAndFlip:
    """A window of the image's own size out of the zero-padded image, mirrored half of the time."""

    padding: int
    flip: bool = False

    def draw(self, count: int, seed: int) -> Tensor:
        """For each image: how far down and right its window begins, and 1 if it is mirrored."""
        generator = torch.Generator().manual_seed(seed)
        offsets = torch.randint(0, 2 * self.padding + 1, (count, 2), generator=generator)
        # Drawn even when unused, so that the crops of a seed do not depend on ``flip``.
        mirrored = torch.randint(0, 2, (count, 1), generator=generator) * int(self.flip)
        return torch.cat([offsets, mirrored], dim=1)

    def __call__(self, images: Tensor, drawn: Tensor) -> Tensor:
        count, channels, height, width = images.shape
        top, left, mirror = drawn.t()[:, :, None]
        rows = top + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device).expand(count, width)
        columns = left + torch.where(mirror == 1, width - 1 - columns, columns)

        # One gather over flattened pixels does crop and flip together; it measured 2 to 10 times
        # faster on a CPU than indexing by four index tensors or unfolding windows.
        padded = F.pad(images, (self.padding,) * 4)
        pixels = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
        pixels = pixels.view(count, 1, height * width).expand(count, channels, -1)
        return padded.flatten(2).gather(2, pixels).view_as(images)


@dataclass(frozen=True)
class HideWords:
    """Words are unknown at random: a model must not rely on any one of them."""

    share: float
    length: int  # of a text

    def draw(self, count: int, seed: int) -> Tensor:
        """For each place of each text: is the word there hidden?"""
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(count, self.length, generator=generator) < self.share

    def __call__(self, texts: Tensor, drawn: Tensor) -> Tensor:
        return texts.masked_fill(drawn & (texts != PADDING), UNKNOWN)


CIFAR10 = CropAndFlip(padding=4, flip=True)
TINY_IMAGENET = CropAndFlip(padding=8, flip=True)
# A mirrored digit is not a digit, and Fashion-MNIST's shoes all point the same way: no flip.
MNIST = FASHION_MNIST = CropAndFlip(padding=2)
# scikit-learn's digits get none: the 8x8 images are cut tightly around the strokes, so that even
# a shift by one pixel pushes ink over the border.
