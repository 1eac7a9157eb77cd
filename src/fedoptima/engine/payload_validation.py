"""Which tensors a peer may send: those that the plan implies, and no others.

A message is checked before the core receives it, not on the thread that trains. So everything
here is fixed when the plan is made; nothing that training changes is read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedoptima.core.errors import NotFinite, ProtocolViolation
from fedoptima.core.messages import ActivationBatch
from fedoptima.core.types import Payload
from fedoptima.engine.codecs import (
    LARGEST_CODE,
    PLAIN_CUT,
    PLAIN_UPDATE,
    SCALE,
    CutCodec,
    UpdateCodec,
)
from fedoptima.engine.flat import FlatTensors, form_of
from fedoptima.engine.payloads import (
    LABELS,
    SHARE,
    Tensors,
    name_activation,
    unpack,
)
from fedoptima.engine.value_ranges import (
    LARGEST,
    ORDERED,
    Range,
    Values,
    diverged,
    lowest_and_highest,
)
from fedoptima.tasks.labels import LabelRule

# Values allowed: so many times what the plan's own model or example has, and at least as many.
# Statistics of the data (buffers) may well be far from where they begin, weights are not.
LARGEST_BUFFER = 1e6
MOST_STEPS = 10**9  # that a counter can have counted
VARIANCE = "running_var"  # of batch normalisation


@dataclass(frozen=True, slots=True)
class Kind:
    """What a tensor is, apart from its values."""

    shape: torch.Size
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> Kind:
        return Kind(tensor.shape, tensor.dtype)

    @staticmethod
    def of_samples(count: int, one: Kind | LabelRule) -> Kind:
        return Kind(torch.Size((count, *one.shape)), one.dtype)

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{tuple(self.shape)} {self.dtype}"


class ExpectedModel:
    """A device's side of the network, whole or as the change of a round: the same tensors.

    ``first``: the plan's first model. What is infinite in it (a mask) may be infinite in the same
    places; other numbers are bounded, variances are not negative, counters count from its values
    on, and any other integers stay within its range.
    """

    def __init__(
        self,
        first: Mapping[str, Tensor],
        parameters: Collection[str],
        codec: UpdateCodec = PLAIN_UPDATE,
    ) -> None:
        sent = codec.encode(dict(first))
        self._kinds = {name: Kind.of(tensor) for name, tensor in sent.items()}
        self.nbytes = sum(tensor.nbytes for tensor in sent.values())
        self.model_bytes = sum(tensor.nbytes for tensor in first.values())
        self.codec = codec
        values = Values(first)
        self._ranges: dict[str, Range] = {}
        for name, tensor in first.items():
            times = LARGEST if name in parameters else LARGEST_BUFFER
            allowed = _allowed(name, tensor, values, times)
            self._ranges |= coded_range(name, allowed, coded=name + SCALE in self._kinds)
        self._infinite = {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in first.items()
            if tensor.is_floating_point() and not values.are_finite(name)
        }
        plain = not self._infinite and not codec.names
        self._quick = _QuickCheck(first, self._ranges) if plain else None

    def check(self, payload: Payload, values: Values | None = None) -> None:
        tensors = tensors_in(payload)
        if values is None and self._quick is not None and self._quick.passes(tensors):
            return
        _check_names(tensors, self._kinds)
        for name, kind in self._kinds.items():
            _check_kind(name, tensors[name], kind)
        values = values or Values(self.codec.comparable(tensors))
        for name, allowed in self._ranges.items():
            if name not in self._infinite:
                values.check(name, allowed)
        # After the others: their values were read, so a GPU has finished with these, too.
        for name, first in self._infinite.items():
            if not _like(first, tensors[name], self._ranges[name]):
                raise NotFinite(diverged(f"{name} holds NaN or Infinity where the plan's does not"))


class _QuickCheck:
    """Looks at all tensors of a type together; what it lets pass is in order.

    In what it does not let pass, each tensor has to be looked at, also to name the one at fault.
    """

    def __init__(self, first: Mapping[str, Tensor], ranges: Mapping[str, Range]) -> None:
        self._form = form_of(first)
        self._common: list[Range] = []  # of each type's tensors
        self._single: dict[str, Range] = {}  # of tensors that may hold less than that
        for dtype in dict.fromkeys(dtype for _, _, dtype in self._form):
            own = {name: ranges[name] for name, _, kind in self._form if kind == dtype}
            usual = [allowed for allowed in own.values() if allowed.low == -allowed.high]
            common = _intersection(usual or own.values())
            self._common.append(common)
            self._single |= {name: found for name, found in own.items() if not common.within(found)}

    def passes(self, tensors: Tensors) -> bool:
        if not isinstance(tensors, FlatTensors) or tensors.layout.form != self._form:
            return False
        looked_at = [*tensors.groups, *(tensors[name] for name in self._single)]
        if not all(tensor.numel() and tensor.dtype in ORDERED for tensor in looked_at):
            return False
        found = (Range(*map(float, tensor.aminmax())) for tensor in looked_at)
        allowed = (*self._common, *self._single.values())
        return all(one.within(other) for one, other in zip(found, allowed, strict=True))


def _intersection(ranges: Collection[Range]) -> Range:
    return Range(max(one.low for one in ranges), min(one.high for one in ranges))


def _allowed(name: str, first: Tensor, values: Values, times: float) -> Range:
    low, high = values.range(name)
    if not first.is_floating_point():
        return Range(low, high + MOST_STEPS if first.dim() == 0 else high)
    most = _bound(low, high, times)
    return Range(0.0 if name.endswith(VARIANCE) else -most, most)


def _bound(low: float, high: float, times: float = LARGEST) -> float:
    sizes = (abs(number) for number in (low, high) if math.isfinite(number))
    return times * max(1.0, *sizes, 1.0)


def _like(first: Tensor, tensor: Tensor, allowed: Range) -> bool:
    """A model with infinite values is rare; on a GPU this waits for it."""
    first = first.to(tensor.device)
    inside = (tensor >= allowed.low) & (tensor <= allowed.high)
    return bool((inside | (tensor == first)).all())


class ExpectedActivations:
    """What crosses the cut, with its labels. ``example``: some activation of this plan."""

    def __init__(
        self, example: object, *, batch_size: int, labels: LabelRule, cut: CutCodec = PLAIN_CUT
    ) -> None:
        plain = name_activation(example)
        self._samples = _kinds_of_a_sample(cut.encode(plain))
        self._names = {*self._samples, LABELS}
        self._kinds_of: dict[int, dict[str, Kind]] = {}  # by the number of samples
        sample = sum(kind.nbytes for kind in self._samples.values())
        self.nbytes = (sample + labels.nbytes) * batch_size + torch.float64.itemsize
        floats = {name: tensor for name, tensor in plain.items() if tensor.is_floating_point()}
        gradients = _kinds_of_a_sample(cut.encode_gradients(floats))
        self.gradient_bytes = sum(kind.nbytes for kind in gradients.values()) * batch_size
        self._batch_size = batch_size
        values = Values(plain)
        self.ranges = {LABELS: Range(labels.low, labels.high)}
        for name in plain:
            allowed = _of_example(values.range(name))
            self.ranges |= coded_range(name, allowed, coded=name + SCALE in self._samples)
        self._labels = labels
        self._cut = cut
        kinds: list[Kind | LabelRule] = [labels, *self._samples.values()]
        self._plain = (
            all(kind.dtype in ORDERED and math.prod(kind.shape) for kind in kinds)
            and self.ranges.keys() == self._names  # nothing is coded
            and labels.ignored is None
        )

    def check(self, batch: ActivationBatch, values: Values | None = None) -> None:
        if values is None and self._passes(batch):
            return
        self.check_form(batch)
        if batch.parts > 1 and not 0 < float(tensors_in(batch.data)[SHARE]) <= 1:
            raise ProtocolViolation("the share of a mini-batch is not in (0, 1]")
        values = values or Values(self.comparable(tensors_in(batch.data)))
        for name, allowed in self.ranges.items():
            values.check(name, allowed)

    def _passes(self, batch: ActivationBatch) -> bool:
        """It is in order: as most are. What does not pass here has to be looked at closely."""
        tensors = batch.data.value
        if not (self._plain and isinstance(tensors, dict) and batch.part + 1 == batch.parts == 1):
            return False
        labels = tensors.get(LABELS)
        if labels is None or not labels.dim() or len(tensors) != len(self.ranges):
            return False
        kinds = self._kinds_of.get(labels.shape[0])  # None: that many have not come before
        if kinds is None or labels.is_cuda:
            return False
        for name, kind in kinds.items():
            tensor = tensors.get(name)
            if tensor is None or tensor.shape != kind.shape or tensor.dtype != kind.dtype:
                return False
            low, high = lowest_and_highest(tensor)
            allowed = self.ranges[name]
            if not (allowed.low <= low and high <= allowed.high):
                return False
        return True

    def comparable(self, tensors: Tensors) -> Tensors:
        """The same, with values that can be compared with the ranges."""
        tensors = self._cut.comparable(tensors)
        if self._labels.ignored is None or LABELS not in tensors:
            return tensors
        return {**tensors, LABELS: self._labels.comparable(tensors[LABELS])}

    def check_form(self, batch: ActivationBatch) -> None:
        """All but the values."""
        if not 0 <= batch.part < batch.parts:
            raise ProtocolViolation(f"part {batch.part} of {batch.parts} parts of a mini-batch")
        tensors = tensors_in(batch.data)
        _check_names(tensors, self._names if batch.parts == 1 else {*self._names, SHARE})
        count = self._count(tensors[LABELS], batch.parts)
        for name, kind in self._kinds(count).items():
            _check_kind(name, tensors[name], kind)
        if batch.parts > 1:
            _check_share(tensors[SHARE])

    def _count(self, labels: Tensor, parts: int) -> int:
        """How many samples there are."""
        count = labels.shape[0] if labels.dim() else 0
        most = -(-self._batch_size // parts)  # torch.tensor_split gives the first parts one more
        if 1 <= count <= most:
            return count
        _check_kind(LABELS, labels, Kind.of_samples(count, self._labels))
        raise ProtocolViolation(f"{count} samples in a batch of 1 to {most}")

    def _kinds(self, count: int) -> dict[str, Kind]:
        """Of all tensors, with as many samples: at most a batch's, so few are kept."""
        if (found := self._kinds_of.get(count)) is None:
            own = {LABELS: Kind.of_samples(count, self._labels)}
            own |= {name: Kind.of_samples(count, kind) for name, kind in self._samples.items()}
            found = self._kinds_of[count] = own
        return found


def _kinds_of_a_sample(tensors: Tensors) -> dict[str, Kind]:
    return {name: Kind(tensor.shape[1:], tensor.dtype) for name, tensor in tensors.items()}


def coded_range(name: str, allowed: Range, *, coded: bool) -> dict[str, Range]:
    """``coded`` in int8, where a scale stands for the largest number of its row."""
    if not coded:
        return {name: allowed}
    return {name: Range(-LARGEST_CODE, LARGEST_CODE), name + SCALE: Range(0, allowed.high)}


def _of_example(found: Range) -> Range:
    """Infinity is allowed on a side where the plan's example has it: masks."""
    most = _bound(*found)
    low = -most if found.low != -math.inf else -math.inf
    return Range(low, most if found.high != math.inf else math.inf)


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
    usual = share.dtype in (torch.float32, torch.float64)  # others may not mix with a loss
    if share.dim() or not usual:
        raise ProtocolViolation(f"the share of a mini-batch is {Kind.of(share)}, not a number")
