"""Blocks that auxiliary networks are made of, like those of the device side."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from math import gcd

from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import Masked
from fedoptima.models.mobilenet import InvertedResidual
from fedoptima.models.transformer import EncoderLayer
from fedoptima.tasks.output import Output

# A wide flat activation must not give the device a square weight matrix of its width to train.
WIDEST_HIDDEN = 512


def same_places(
    activation: object,
    output: Output,
    depth: int,
    last: nn.Module | None,
    function: nn.Module,
) -> tuple[list[nn.Module], int]:
    """Blocks that keep every place where it is, and how many features they return there."""
    if isinstance(activation, Masked):
        width = activation.hidden.shape[-1]
        return encoder_blocks(width, depth, last), width
    if not isinstance(activation, Tensor) or activation.dim() not in (3, 4):
        return [], 0
    channels = activation.shape[1]
    if activation.dim() == 3 and channels == output.places[0]:
        return position_blocks(activation.shape[-1], depth, last, function)
    if activation.dim() == 3:  # of a Conv1d: channels first
        convolutions = (nn.Conv1d(channels, channels, 3, padding=1) for _ in range(depth))
        return [nn.Sequential(conv, deepcopy(function)) for conv in convolutions], channels
    if isinstance(last, InvertedResidual):
        return [last.same_width(channels) for _ in range(depth)], channels
    groups = gcd(last.groups, channels) if isinstance(last, nn.Conv2d) else 1
    layers = [
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(channels, channels, 3, padding=1, groups=groups),
            norm=nn.BatchNorm2d(channels),
            activation=deepcopy(function),
        )
        for _ in range(depth)
    ]
    return [nn.Sequential(block) for block in layers], channels


def encoder_blocks(width: int, depth: int, last: nn.Module | None) -> list[nn.Module]:
    if depth and not isinstance(last, EncoderLayer):
        raise ConfigError(
            "the device side returns Masked hidden states but holds no EncoderLayer to copy; "
            "set auxiliary to 'classifier'"
        )
    return [last.alike(width) for _ in range(depth)] if isinstance(last, EncoderLayer) else []


def position_blocks(
    width: int, depth: int, last: nn.Module | None, function: nn.Module
) -> tuple[list[nn.Module], int]:
    """And the width of what they return."""
    blocks: list[nn.Module] = []
    for _ in range(depth):
        if isinstance(last, nn.TransformerEncoderLayer) and last.self_attn.batch_first:
            blocks.append(
                nn.TransformerEncoderLayer(
                    width,
                    last.self_attn.num_heads,
                    last.linear1.out_features,
                    last.dropout.p,
                    last.activation,
                    batch_first=True,
                    norm_first=last.norm_first,
                )
            )
        else:
            hidden = min(width, WIDEST_HIDDEN)
            blocks.append(hidden_layer(width, hidden, function))
            width = hidden
    return blocks, width


def hidden_layer(inputs: int, outputs: int, function: nn.Module) -> nn.Sequential:
    layers = OrderedDict(linear=nn.Linear(inputs, outputs), activation=deepcopy(function))
    return nn.Sequential(layers)
