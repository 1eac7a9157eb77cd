"""VGG-5: three convolutions and two dense layers, five blocks that may each end the device side.

No module works in place on its input, because a block's input may be an activation that is still
on its way to the server.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedoptima.models.checks import at_least


def vgg5(*, channels: int = 3, image_size: int = 32, classes: int = 10) -> nn.Sequential:
    """VGG-5 (paper, table of architectures): 582,346 parameters for 3 x 32 x 32 and 10 classes."""
    at_least(1, "vgg5", channels=channels, classes=classes)
    at_least(4, "vgg5", image_size=image_size)  # two poolings halve it twice
    side = image_size // 4
    return nn.Sequential(
        OrderedDict(
            block1=_convolution(channels, 32, pool=True),
            block2=_convolution(32, 64, pool=True),
            block3=_convolution(64, 64, pool=False),
            block4=nn.Sequential(
                OrderedDict(
                    flatten=nn.Flatten(), linear=nn.Linear(64 * side * side, 128), relu=nn.ReLU()
                )
            ),
            block5=nn.Sequential(OrderedDict(linear=nn.Linear(128, classes))),
        )
    )


def _convolution(inputs: int, outputs: int, *, pool: bool) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(inputs, outputs, kernel_size=3, padding=1),
        norm=nn.BatchNorm2d(outputs),
        relu=nn.ReLU(),
    )
    if pool:
        layers["pool"] = nn.MaxPool2d(2)
    return nn.Sequential(layers)
