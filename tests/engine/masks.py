"""Two tensors cross the cut of this model: an activation, and a mask made of the input."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fedoptima.core.method import ServerTraining
from tests.engine.bench import Bench, samples


class Masking(nn.Module):
    def __init__(self, mask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.mask = nn.Linear(6, 8), mask

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(inputs), self.mask(inputs)


class Reading(nn.Module):
    def __init__(self, apply_mask: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.apply_mask = nn.Linear(8, 3), apply_mask

    def forward(self, crossed: tuple[Tensor, Tensor]) -> Tensor:
        hidden, mask = crossed
        return self.apply_mask(self.linear(hidden), mask)


def masked_bench(
    mask: Callable[[Tensor], Tensor], apply_mask: Callable[[Tensor, Tensor], Tensor]
) -> Bench:
    model = nn.Sequential(Masking(mask), Reading(apply_mask))
    return Bench(model, samples(), training=ServerTraining.PER_DEVICE, auxiliary="none")
