"""Which tensors a peer may send: those that the plan implies, and no others.

A message is checked before the core receives it, not on the thread that trains. So everything
here is fixed when the plan is made; nothing that training changes is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedoptima.core.errors import NotFinite, ProtocolViolation
from fedoptima.core.messages import ActivationBatch
from fedoptima.core.types import Payload
from fedoptima.engine.payloads import ACTIVATIONS, LABELS, SHARE, Tensors, unpack
from fedoptima.models.activation import tensors_of


@dataclass(frozen=True, slots=True)
class Kind:
    """What a tensor is, apart from its values."""

    shape: torch.Size
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> Kind:
        return Kind(tensor.shape, tensor.dtype)

    def __str__(self) -> str:
        return f"{tuple(self.shape)} {self.dtype}"


class ExpectedModel:
    """A device's side of the network, whole or as the change of a round: the same tensors."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._kinds = {name: Kind.of(tensor) for name, tensor in tensors.items()}
        self.nbytes = sum(tensor.nbytes for tensor in tensors.values())

    def check(self, payload: Payload, values: Values | None = None) -> None:
        tensors = tensors_in(payload)
        _check_names(tensors, self._kinds)
        for name, kind in self._kinds.items():
            _check_kind(name, tensors[name], kind)
        (values or Values(tensors)).check_numbers(tensors)


class Values:
    """Facts about the values of some tensors: computed where they are, read later.

    On a GPU the result is copied to the host behind the work queued so far, so that reading it
    does not wait for work queued later.
    """

    def __init__(self, tensors: Tensors) -> None:
        floats = [t for name, t in tensors.items() if t.is_floating_point() and name != SHARE]
        labels = tensors.get(LABELS)
        found = [
            t.sum() for t in floats
        ]  # NaN if one of the values is, and cheaper than checking each
        if labels is not None and labels.dtype == torch.int64 and labels.numel():
            found += labels.aminmax()
        self._sums = len(floats)
        self._found = torch.stack([number.detach().double() for number in found] or [_NOTHING])
        self._copied: torch.cuda.Event | None = None
        if self._found.is_cuda:
            host = torch.empty(self._found.shape, dtype=torch.float64, pin_memory=True)
            stream = torch.cuda.current_stream(self._found.device)
            self._found = host.copy_(self._found, non_blocking=True)
            self._copied = stream.record_event()

    def _read(self) -> list[float]:
        if self._copied is not None:
            self._copied.synchronize()
        return [float(number) for number in self._found]

    def labels(self) -> tuple[int, int]:
        """The lowest and the highest."""
        low, high = self._read()[self._sums :]
        return int(low), int(high)

    def check_numbers(self, tensors: Tensors) -> None:
        """One device's NaN would spread with the next step. Infinity may be intended: masks."""
        if not any(map(math.isnan, self._read()[: self._sums])):
            return
        for name, tensor in tensors.items():  # the sum of infinities may be NaN, too
            if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
                raise NotFinite(
                    f"{name} holds NaN: either the training has diverged (lower the learning "
                    "rate, set clip_norm) or something is wrong with the data"
                )


_NOTHING = torch.zeros(())


class ExpectedActivations:
    """What crosses the cut, with its labels. ``example``: some activation of this plan."""

    def __init__(self, example: object, *, batch_size: int, classes: int) -> None:
        self._samples = {
            f"{ACTIVATIONS}{index}": Kind(tensor.shape[1:], tensor.dtype)
            for index, tensor in enumerate(tensors_of(example))
        }
        self._names = {*self._samples, LABELS}
        sample = sum(kind.shape.numel() * kind.dtype.itemsize for kind in self._samples.values())
        self.nbytes = (sample + torch.int64.itemsize) * batch_size + torch.float64.itemsize
        self._batch_size = batch_size
        self._classes = classes

    def check(self, batch: ActivationBatch, values: Values | None = None) -> None:
        if not 0 <= batch.part < batch.parts:
            raise ProtocolViolation(f"part {batch.part} of {batch.parts} parts of a mini-batch")
        tensors = tensors_in(batch.data)
        _check_names(tensors, self._names if batch.parts == 1 else {*self._names, SHARE})
        count = self._count(tensors[LABELS], batch.parts)
        for name, kind in self._samples.items():
            _check_kind(name, tensors[name], Kind(torch.Size((count, *kind.shape)), kind.dtype))
        if batch.parts > 1:
            _check_share(tensors[SHARE])
        values = values or Values(tensors)
        low, high = values.labels()
        if low < 0 or high >= self._classes:
            raise ProtocolViolation(f"labels from {low} to {high} for {self._classes} classes")
        values.check_numbers(tensors)

    def _count(self, labels: Tensor, parts: int) -> int:
        """How many samples there are."""
        count = labels.numel()
        _check_kind(LABELS, labels, Kind(torch.Size((count,)), torch.int64))
        most = -(-self._batch_size // parts)  # torch.tensor_split gives the first parts one more
        if not 1 <= count <= most:
            raise ProtocolViolation(f"{count} samples in a batch of 1 to {most}")
        return count


def tensors_in(payload: Payload) -> Tensors:
    return {} if payload.value is None else unpack(payload)


def _check_names(tensors: Tensors, expected: Mapping[str, object] | set[str]) -> None:
    if tensors.keys() != set(expected):
        odd = sorted(tensors.keys() ^ set(expected))
        first = repr(odd[0])[:60]  # a peer may give a tensor any name
        what = "is not the plan's" if odd[0] in tensors else "is missing"
        more = f", and {len(odd) - 1} more" if len(odd) > 1 else ""
        raise ProtocolViolation(f"tensor {first} {what}{more}")


def _check_kind(name: str, tensor: Tensor, expected: Kind) -> None:
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        raise ProtocolViolation(f"tensor {name!r} is {Kind.of(tensor)}, not {expected}")


def _check_share(share: Tensor) -> None:
    if share.dim() or not share.is_floating_point() or not 0 < float(share) <= 1:
        raise ProtocolViolation(f"the share of a mini-batch is {Kind.of(share)}, not in (0, 1]")
