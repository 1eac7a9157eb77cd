"""Auxiliary networks that predict something for each position of a sequence, or for each pixel.

The same blocks as where one class is predicted, without pooling; then a classifier at every place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import Masked
from fedoptima.tasks.output import Output


def place_by_place(
    activation: object, output: Output, blocks: Iterable[nn.Module], width: int
) -> nn.Module:
    """``blocks`` keep the places of ``activation``, and return ``width`` features at each."""
    named = {f"block{number}": block for number, block in enumerate(blocks, start=1)}
    ending = _positions(activation, output, width) if len(output.places) == 1 else None
    ending = ending or _pixels(activation, output, width)
    if ending is None:
        shape = tuple(activation.shape[1:]) if isinstance(activation, Tensor) else "several tensors"
        raise ConfigError(
            f"no auxiliary network makes {output.shape} of {shape} of a sample; set split.at to "
            "cut where the model keeps its positions, give a network with "
            "auxiliary = 'package:build', or set auxiliary to 'none'"
        )
    return nn.Sequential(OrderedDict(named | ending))


def _positions(activation: object, output: Output, width: int) -> dict[str, nn.Module] | None:
    (length,) = output.places
    if isinstance(activation, Masked):
        return {"linear": OnHidden(width, output.size)}
    if not isinstance(activation, Tensor) or activation.dim() != 3:
        return None
    if activation.shape[1] == length:
        return {"linear": nn.Linear(width, output.size)}
    if activation.shape[2] == length:  # of a Conv1d: channels first
        return {"swap": PositionsFirst(), "linear": nn.Linear(width, output.size)}
    return None


def _pixels(activation: object, output: Output, width: int) -> dict[str, nn.Module] | None:
    if not isinstance(activation, Tensor) or activation.dim() != 4 or len(output.places) != 2:
        return None
    ending: dict[str, nn.Module] = {"conv": nn.Conv2d(width, output.size, 1)}
    if tuple(activation.shape[2:]) != output.places:
        # not bilinear: its gradient is not deterministic on CUDA
        ending["upsample"] = nn.Upsample(output.places, mode="nearest")
    return ending


class OnHidden(nn.Linear):
    """Masked hidden states to (batch, length, size)."""

    def forward(self, masked: Tensor | Masked) -> Tensor:
        return super().forward(masked.hidden if isinstance(masked, Masked) else masked)


class PositionsFirst(nn.Module):
    """(batch, channels, length) to (batch, length, channels)."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.transpose(1, 2)
