"""Which labels a task takes: their conversion where data enter, and what a device may send."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError

# classes: integers from 0; numbers: any; shares: from 0 to 1, of several classes at once
LabelKind = Literal["classes", "numbers", "shares"]

_KINDS = {
    "classes": "integer class numbers, 0 to classes - 1",
    "numbers": "numbers",
    "shares": "a 0 or 1 for each class",
}


@dataclass(frozen=True, slots=True)
class LabelRule:
    """What the labels of one run are like."""

    shape: tuple[int, ...]  # of a sample
    dtype: torch.dtype
    low: float
    high: float
    ignored: int | None = None  # a class number that stands for "no label here"

    @property
    def nbytes(self) -> int:
        """Of a sample."""
        return math.prod(self.shape) * self.dtype.itemsize

    def comparable(self, labels: Tensor) -> Tensor:
        """The same without ignored ones, which are outside of the range."""
        if self.ignored is None or labels.dtype != self.dtype:
            return labels
        return labels.masked_fill(labels == self.ignored, int(self.low))

    def within_range(self, labels: Tensor) -> Tensor:
        """Labels that no loss fails on: one that is no class would end the program on a GPU."""
        if self.dtype != torch.int64:
            return labels
        inside = labels.clamp(int(self.low), int(self.high))
        if self.ignored is None:
            return inside
        return torch.where(labels == self.ignored, labels, inside)


def converted(labels: Tensor, kind: LabelKind, what: str) -> Tensor:
    """int64 or float32. ``what``: begins a message, as in "data, train: labels are"."""
    if kind == "classes":
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise ConfigError(
                f"{what} {labels.dtype}; give {_KINDS[kind]}. If they are not classes, say what "
                "they are: task = 'regression' or 'multi-label'"
            )
        return labels.to(torch.int64)
    if labels.is_complex():
        raise ConfigError(f"{what} {labels.dtype}; give {_KINDS[kind]}")
    return labels.to(torch.float32)


def kind_of(labels: Tensor) -> LabelKind:
    """Where nothing else is said."""
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    return "classes" if whole else "numbers"
