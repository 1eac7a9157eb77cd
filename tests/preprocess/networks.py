"""Networks for these tests: every model of the package, small, and some that users write."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedoptima.models.mobilenet import mobilenet_v3_large
from fedoptima.models.transformer import transformer6, transformer12
from fedoptima.models.vgg5 import vgg5


class ResidualBlock(nn.Module):
    """In place wherever it can be, as residual networks often are."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else None

    def forward(self, images: Tensor) -> Tensor:
        changed = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(images)))))
        changed += images if self.down is None else self.down(images)
        return self.relu(changed)


class ResidualNetwork(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((3, 1, 1), 0.5), persistent=False)
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(ResidualBlock(4, 4, 1), ResidualBlock(4, 4, 1))
        self.layer2 = nn.Sequential(ResidualBlock(4, 8, 2), ResidualBlock(8, 8, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 5)

    def forward(self, images: Tensor, extra: Tensor | None = None) -> Tensor:
        images = self.relu(self.bn1(self.conv1(images - self.mean)))
        if extra is not None:
            images = images + extra
        return self.fc(torch.flatten(self.pool(self.layer2(self.layer1(images))), 1))


class SpareNetwork(nn.Module):
    """Holds more than its forward uses, and one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 16), nn.Linear(16, 16), nn.Linear(16, 3)])
        self.first = self.layers[0]
        self.unused = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, rows: Tensor) -> Tensor:
        for layer in self.layers:
            rows = layer(rows).relu()
        return rows


def every_network() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    words = torch.randint(0, 20, (2, 7))
    words[0, 3:] = 0
    return {
        "vgg5": (vgg5(channels=1, image_size=8), torch.rand(2, 1, 8, 8)),
        "mobilenet": (mobilenet_v3_large(image_size=32, classes=3), torch.rand(2, 3, 32, 32)),
        "transformer6": (transformer6(vocabulary=20, length=7, classes=2), words),
        "transformer12": (transformer12(vocabulary=20, length=7, classes=2), words),
        "residual": (ResidualNetwork(), torch.rand(2, 3, 8, 8)),
        "spare": (SpareNetwork(), torch.rand(2, 32)),
    }
