"""Folds updates into a model. All of the package's weighted sums of weights are here.

Batch-norm and other buffers (docs/decisions/0009): floating-point tensors, running statistics
included, are averaged like weights; integer tensors are counters and take the largest value, so a
counter never runs backwards and is never rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from fedoptima.core.jobs import ServerOptimizer
from fedoptima.core.types import NodeId
from fedoptima.engine.determinism import prepare_thread
from fedoptima.engine.flat import FlatTensors, Layout
from fedoptima.engine.payloads import Tensors

_AT_ONCE = 2**17  # numbers
_MANY = 8  # updates; merging fewer takes no longer than starting threads


def merge(
    base: Mapping[str, Tensor],
    keep: float,
    parts: Sequence[tuple[float, Mapping[str, Tensor]]],
    threads: int = 1,
) -> Tensors:
    """``keep * base + sum(weight * part)``, in the order given.

    ``threads``: that may work on it where there is much to do. The bits are the same.
    """
    if isinstance(base, FlatTensors):
        flat = [(w, part) for w, part in parts if isinstance(part, FlatTensors)]
        if len(flat) == len(parts) and all(part.layout is base.layout for _, part in flat):
            return _merge_flat(base, keep, flat, threads if len(parts) >= _MANY else 1)
    merged: Tensors = {}
    with torch.no_grad():
        for name, tensor in base.items():
            if tensor.is_floating_point():
                # Starting from the first part, not from zero times base: exact when keep is 0.
                total = tensor * keep if keep else None
                share = torch.empty_like(tensor)  # one for all: fresh memory takes as long as sums
                for weight, part in parts:
                    if total is None:
                        total = part[name] * weight
                    else:
                        total += torch.mul(part[name], weight, out=share)
                merged[name] = tensor.clone() if total is None else total
            else:
                merged[name] = _latest(tensor, [part[name] for _, part in parts])
    return merged


def _merge_flat(
    base: FlatTensors, keep: float, parts: Sequence[tuple[float, FlatTensors]], threads: int
) -> FlatTensors:
    """The same sums, of a piece of memory at a time that stays in the processor's cache."""
    merged = FlatTensors(base.layout, torch.empty_like(base.memory))
    chunks: list[tuple[int, slice]] = []
    for number, before in enumerate(base.groups):
        if before.is_floating_point():
            count = -(-len(before) // (_AT_ONCE * threads)) * threads  # the same for each
            bounds = [len(before) * place // count for place in range(count + 1)]
            chunks += [(number, slice(*pair)) for pair in pairwise(bounds)]
        else:
            latest = _latest(before, [part.groups[number] for _, part in parts])
            merged.groups[number].copy_(latest)

    def add_up(chunk: tuple[int, slice]) -> None:
        number, place = chunk
        own = [(weight, part.groups[number][place]) for weight, part in parts]
        _add_up(merged.groups[number][place], base.groups[number][place], keep, own)

    if threads == 1:
        for chunk in chunks:
            add_up(chunk)
    else:
        with ThreadPoolExecutor(threads, initializer=prepare_thread, initargs=(1,)) as pool:
            list(pool.map(add_up, chunks))
    return merged


@torch.no_grad()
def _add_up(
    total: Tensor, before: Tensor, keep: float, parts: Sequence[tuple[float, Tensor]]
) -> None:
    rest = iter(parts)
    first = None if keep else next(rest, None)
    if first is not None:
        torch.mul(first[1], first[0], out=total)
    elif keep:
        torch.mul(before, keep, out=total)
    else:
        total.copy_(before)
    share = torch.empty_like(total)
    for weight, part in rest:
        total += torch.mul(part, weight, out=share)


class RunningSum:
    """Updates that are added up as they come, so that their mean takes no more memory than two.

    In double precision and at whole numbers of samples a sum of single-precision numbers is hardly
    ever rounded: in which order they came does not show in their mean. Updates in one piece are
    added in one piece, into the same memory: fresh memory takes ten times as long as the sum.
    """

    def __init__(self) -> None:
        self._layout: Layout | None = None  # of the updates, if the totals are in one piece as well
        self._groups: list[Tensor] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """With the memory that it has, if it is in one piece."""
        self.weight = 0.0
        self.totals: Tensors = {}
        self.left_out: dict[NodeId, str] = {}  # devices whose updates are not in it, and why
        self.error: Exception | None = None

    @torch.no_grad()
    def add(self, weight: float, update: Mapping[str, Tensor]) -> None:
        """What fails may have been added in part: such a sum is of no use any more."""
        if not self.totals:
            self._begin(update)
        if isinstance(update, FlatTensors) and update.layout is self._layout:
            # In parts: torch makes a copy of each in double precision.
            totals = [part for group in self._groups for part in torch.split(group, _AT_ONCE)]
            parts = [part for group in update.groups for part in torch.split(group, _AT_ONCE)]
            pairs = list(zip(totals, parts, strict=True))
        else:
            pairs = [(total, update[name]) for name, total in self.totals.items()]
        for total, tensor in pairs:
            if tensor.is_floating_point():
                total.add_(tensor, alpha=weight)
            else:
                torch.maximum(total, tensor, out=total)
        self.weight += weight

    def _begin(self, update: Mapping[str, Tensor]) -> None:
        if not isinstance(update, FlatTensors):
            self._layout, self._groups = None, []
            self.totals = {name: _nothing(tensor) for name, tensor in update.items()}
            return
        if update.layout is not self._layout:
            self._layout = update.layout
            self._groups = [_nothing(group) for group in update.groups]
        else:
            for group, tensor in zip(self._groups, update.groups, strict=True):
                group.zero_() if group.is_floating_point() else group.copy_(tensor)
        self.totals = update.layout.within(self._groups)

    @torch.no_grad()
    def mean(self, like: Mapping[str, Tensor]) -> Tensors:
        """In the types of ``like``, rounded once. The sum is used up by it: `begin_anew`."""
        flat = isinstance(like, FlatTensors) and like.layout is self._layout
        for total in self._groups if flat else self.totals.values():
            if total.is_floating_point():
                total.div_(self.weight)
        if not (flat and isinstance(like, FlatTensors)):
            return {name: total.to(like[name].dtype) for name, total in self.totals.items()}
        mean = FlatTensors(like.layout, torch.empty_like(like.memory))
        for group, total in zip(mean.groups, self._groups, strict=True):
            group.copy_(total)
        return mean

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, object], Tensors]:
        if self.error is not None:
            raise self.error
        totals = {name: total.clone() for name, total in self.totals.items()}
        return {"weight": self.weight, "left out": self.left_out}, totals

    def restore(self, state: Mapping[str, object], totals: Tensors) -> None:
        self.weight = cast(float, state["weight"])
        self.left_out = dict(cast(Mapping[NodeId, str], state["left out"]))
        self._layout, self._groups = None, []
        self.totals = {name: total.clone() for name, total in totals.items()}


def _nothing(tensor: Tensor) -> Tensor:
    """What tensors like this one are added to; counters take the largest value."""
    if tensor.is_floating_point():
        return torch.zeros_like(tensor, dtype=torch.float64)
    return tensor.clone()


class DeltaOptimizer:
    """Moves a model by a sum of deltas: FedBuff's server learning rate and momentum."""

    def __init__(self) -> None:
        self.velocity: Tensors = {}

    def apply(
        self,
        base: Mapping[str, Tensor],
        parts: Sequence[tuple[float, Mapping[str, Tensor]]],
        settings: ServerOptimizer,
        parameters: Collection[str],
    ) -> Tensors:
        """Only parameters are moved by deltas; buffers are handed in as they are and averaged.

        A running variance moved by differences to several older models could become negative, and
        so it could at weights that add up to more than 1: then they count in proportion.
        """
        buffers = {name: tensor for name, tensor in base.items() if name not in parameters}
        total = max(1.0, sum(weight for weight, _ in parts))
        shares = [(weight / total, part) for weight, part in parts]
        moved = merge(buffers, max(0.0, 1 - sum(weight for weight, _ in shares)), shares)
        with torch.no_grad():
            for name, tensor in base.items():
                if name not in parameters:
                    continue
                step = torch.zeros_like(tensor)
                for weight, part in parts:
                    step = step + part[name] * weight
                if settings.momentum:
                    before = self.velocity.get(name)
                    step = step if before is None else before * settings.momentum + step
                    self.velocity[name] = step
                moved[name] = tensor + step * settings.learning_rate
        return {name: moved[name] for name in base}


def difference(
    after: Mapping[str, Tensor], before: Mapping[str, Tensor], parameters: Collection[str]
) -> Tensors:
    """What a device hands in if deltas are merged: its parameters' change, and its buffers."""
    with torch.no_grad():
        return {
            name: (tensor - before[name] if name in parameters else tensor.detach().clone())
            for name, tensor in after.items()
        }


def carried_over(
    model: Tensors, own: Tensors, handed_in: Tensors, parameters: frozenset[str]
) -> Tensors:
    """``model``, moved as ``own`` has moved since it was ``handed_in``.

    Without the buffers: a running variance that is moved by a difference may become negative.
    """
    return {
        name: tensor + (own[name].detach() - handed_in[name]) if name in parameters else tensor
        for name, tensor in model.items()
    }


def _latest(tensor: Tensor, others: Sequence[Tensor]) -> Tensor:
    latest = tensor
    for other in others:
        latest = torch.maximum(latest, other)
    return latest.clone()
