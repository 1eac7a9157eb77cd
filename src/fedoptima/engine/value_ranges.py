"""The lowest and highest values of tensors, and what is said of those outside of a range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor

from fedoptima.core.errors import NotFinite, ProtocolViolation
from fedoptima.engine.host_copy import HostCopy
from fedoptima.engine.payloads import LABELS

LARGEST: Final = 1e3  # times the plan's own: what is beyond has diverged


class Range(NamedTuple):
    low: float
    high: float

    def within(self, other: Range) -> bool:
        return other.low <= self.low and self.high <= other.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


class Values:
    """The lowest and highest value of some tensors: computed where they are, read later.

    On a GPU the result is copied to the host behind the work queued so far, so that reading it
    does not wait for work queued later.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._here: dict[str, Range] = {}
        self._names: dict[str, int] = {}
        pairs = list[Tensor]()
        for name, tensor in tensors.items():
            if not tensor.numel() or tensor.dtype not in ORDERED:
                continue
            if tensor.is_cuda:
                self._names[name] = len(pairs)
                pairs.append(torch.stack(tensor.detach().aminmax()).double())
            else:
                self._here[name] = Range(*lowest_and_highest(tensor))
        if pairs:
            self._copy = HostCopy(torch.stack(pairs))

    def range(self, name: str) -> Range:
        if name in self._names:
            return Range(*self._copy.read()[self._names[name]])
        return self._here.get(name, _NOTHING)

    def are_finite(self, name: str) -> bool:
        return all(map(math.isfinite, self.range(name)))

    def check(self, name: str, allowed: Range) -> None:
        """Raise ProtocolViolation if a value is outside."""
        check_range(name, self.range(name), allowed)


def lowest_and_highest(tensor: Tensor) -> tuple[float, float]:
    """Of an ordered type, on the CPU, not empty. If one of the values is NaN, both are."""
    if tensor.dtype is torch.int64 and tensor.numel() <= _FEW:
        numbers = (tensor if tensor.dim() == 1 else tensor.flatten()).tolist()
        return min(numbers), max(numbers)
    low, high = (tensor.detach() if tensor.requires_grad else tensor).aminmax()
    return low.item(), high.item()


def check_range(name: str, found: Range, allowed: Range) -> None:
    low, high = found
    if allowed.low <= low and high <= allowed.high:
        return
    if name == LABELS and allowed.low == 0 and allowed.high > 1:
        raise ProtocolViolation(f"labels from {low:g} to {high:g} for {allowed.high + 1:g} classes")
    if name == LABELS:
        raise ProtocolViolation(f"labels from {low:g} to {high:g}, outside of {allowed}")
    if math.isnan(low):
        raise NotFinite(diverged(f"{name} holds NaN"))
    # Not which values: devices with the same fault are then listed together.
    said = f"{name} holds values outside {allowed}"
    if abs(low) < LARGEST and abs(high) < LARGEST:  # a variance below 0, a counter
        raise ProtocolViolation(said)
    raise NotFinite(diverged(said))


_FEW: Final = 64  # numbers that Python looks at in less time than a call of torch takes
_NOTHING: Final = Range(0.0, 0.0)
ORDERED: Final = frozenset(
    (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
)


def diverged(what: str) -> str:
    return (
        f"{what}. Either the training has diverged (lower the learning rate, set clip_norm) or "
        "something is wrong with the data (are its numbers large? scale them)"
    )
