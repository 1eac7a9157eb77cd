"""The smallest network there is, with a first block that breaks once, when it is told to."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from tests.e2e import tiny

WORDS = "the <i>camera</i> is gone"


class Fragile(nn.Module):
    def __init__(self, block: nn.Module, switch: Path) -> None:
        super().__init__()
        self.block = block
        self._switch = switch

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and self._switch.exists():
            self._switch.unlink()  # a second process that comes here fails as well, or trains on
            raise OSError(WORDS)
        outputs: Tensor = self.block(inputs)
        return outputs


def model(channels: int, image_size: int, classes: int, switch: str) -> nn.Module:
    """Breaks in training as soon as there is a file called ``switch``."""
    first, *others = tiny.model(channels, image_size, classes)
    return nn.Sequential(Fragile(first, Path(switch)), *others)
