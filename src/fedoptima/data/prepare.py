"""From the raw batch that is stored to the batch that a model takes; nothing here is random."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalise:
    """uint8 pixels to float32 with mean 0 and deviation 1; both are given for pixels in 0..1."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    full_scale: int = 255

    def __call__(self, pixels: Tensor) -> Tensor:
        scale, shift = _scale_and_shift(self, pixels.device)
        return torch.addcmul(shift, pixels.to(torch.float32), scale)


@lru_cache(maxsize=64)
def _scale_and_shift(normalise: Normalise, device: torch.device) -> tuple[Tensor, Tensor]:
    # Kept per device: building them for every batch would be a copy to the GPU for every batch.
    mean = torch.tensor(normalise.mean, dtype=torch.float64).view(-1, 1, 1)
    deviation = torch.tensor(normalise.deviation, dtype=torch.float64).view(-1, 1, 1)
    scale = (1.0 / (deviation * normalise.full_scale)).to(device, torch.float32)
    return scale, (-mean / deviation).to(device, torch.float32)


def token_ids(tokens: Tensor) -> Tensor:
    """Ids are kept as int32 to halve their memory; embeddings are indexed by int64."""
    return tokens.to(torch.int64)


def as_given(inputs: Tensor) -> Tensor:
    return inputs
