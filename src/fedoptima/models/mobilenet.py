"""MobileNetV3-Large as published (Howard et al. 2019, table 1), one named block per table row.

A residual connection never leaves its block, so every boundary between blocks may be cut.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from torch import Tensor, nn

from fedoptima.models.checks import at_least


class _Row(NamedTuple):
    kernel: int
    expanded: int
    outputs: int
    squeeze: bool
    hardswish: bool
    stride: int


# kernel, expanded, outputs, squeeze-excite, hardswish (else ReLU), stride
_ROWS = (
    _Row(3, 16, 16, False, False, 1),
    _Row(3, 64, 24, False, False, 2),
    _Row(3, 72, 24, False, False, 1),
    _Row(5, 72, 40, True, False, 2),
    _Row(5, 120, 40, True, False, 1),
    _Row(5, 120, 40, True, False, 1),
    _Row(3, 240, 80, False, True, 2),
    _Row(3, 200, 80, False, True, 1),
    _Row(3, 184, 80, False, True, 1),
    _Row(3, 184, 80, False, True, 1),
    _Row(3, 480, 112, True, True, 1),
    _Row(3, 672, 112, True, True, 1),
    _Row(5, 672, 160, True, True, 2),
    _Row(5, 960, 160, True, True, 1),
    _Row(5, 960, 160, True, True, 1),
)


# Of running statistics. The usual 0.01 of this model is for training in one place: a device takes
# some tens of steps between two merges, in which 0.01 would hardly move them from where they begin,
# and the model would be evaluated with statistics that fit none of its weights.
MOMENTUM = 0.1


def mobilenet_v3_large(
    *, channels: int = 3, image_size: int = 64, classes: int = 200
) -> nn.Sequential:
    """MobileNetV3-Large: 5,483,032 parameters for 3 channels and 1000 classes, any image size."""
    at_least(1, "mobilenet_v3_large", channels=channels, classes=classes)
    at_least(32, "mobilenet_v3_large", image_size=image_size)  # five strides of 2
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["stem"] = _convolution(channels, 16, kernel=3, stride=2, activation=nn.Hardswish())
    width = 16
    for number, row in enumerate(_ROWS, start=1):
        blocks[f"bneck{number}"] = InvertedResidual(
            width,
            row.outputs,
            expanded=row.expanded,
            kernel=row.kernel,
            stride=row.stride,
            squeeze=row.squeeze,
            hardswish=row.hardswish,
        )
        width = row.outputs
    blocks["conv"] = _convolution(width, 960, kernel=1, activation=nn.Hardswish())
    blocks["head"] = nn.Sequential(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            hidden=nn.Linear(960, 1280),
            activation=nn.Hardswish(),
            dropout=nn.Dropout(0.2),
            linear=nn.Linear(1280, classes),
        )
    )
    model = nn.Sequential(blocks)
    model.apply(_initialise)
    return model


class InvertedResidual(nn.Module):
    """Expand, filter each channel, squeeze-excite, project; plus the input where shapes agree."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        expanded: int,
        kernel: int,
        stride: int = 1,
        squeeze: bool,
        hardswish: bool,
    ) -> None:
        super().__init__()
        self.expanded, self.kernel = expanded, kernel
        self.squeeze, self.hardswish = squeeze, hardswish
        self.residual = stride == 1 and inputs == outputs
        activation: type[nn.Module] = nn.Hardswish if hardswish else nn.ReLU
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if expanded != inputs:
            layers["expand"] = _convolution(inputs, expanded, kernel=1, activation=activation())
        layers["depthwise"] = _convolution(
            expanded,
            expanded,
            kernel=kernel,
            stride=stride,
            groups=expanded,
            activation=activation(),
        )
        if squeeze:
            layers["squeeze"] = SqueezeExcite(expanded)
        layers["project"] = _convolution(expanded, outputs, kernel=1)
        self.layers = nn.Sequential(layers)

    def forward(self, images: Tensor) -> Tensor:
        projected: Tensor = self.layers(images)
        return images + projected if self.residual else projected

    def same_width(self, channels: int) -> InvertedResidual:
        """A fresh block of this kind with ``channels`` in and out (what an auxiliary copies)."""
        block = InvertedResidual(
            channels,
            channels,
            expanded=self.expanded,
            kernel=self.kernel,
            squeeze=self.squeeze,
            hardswish=self.hardswish,
        )
        block.apply(_initialise)
        return block


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate computed from all channels' means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _divisible_by_8(channels / 4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.relu = nn.ReLU()
        self.restore = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, images: Tensor) -> Tensor:
        gate: Tensor = self.gate(self.restore(self.relu(self.reduce(self.pool(images)))))
        return images * gate


def _convolution(
    inputs: int,
    outputs: int,
    *,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(
            inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
        ),
        norm=nn.BatchNorm2d(outputs, eps=0.001, momentum=MOMENTUM),
    )
    if activation is not None:
        layers["activation"] = activation
    return nn.Sequential(layers)


def _divisible_by_8(width: float) -> int:
    """The nearest multiple of 8, never more than 10 % below ``width`` (the published rounding)."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0.0, 0.01)
        nn.init.zeros_(module.bias)
