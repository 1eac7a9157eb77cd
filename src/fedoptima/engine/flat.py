"""Named tensors in one piece of memory: copied, looked at and merged as a whole.

A model has dozens of tensors, most of them small, and calling a kernel takes longer than what it
does to them. Tensors of one type lie side by side, each where torch itself would align it: how a
kernel rounds may depend on that. What is between two of them is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 64  # torch's own

Form = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]  # names, shapes and types


class _View(NamedTuple):
    name: str
    group: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int  # from the beginning, in elements


class Group(NamedTuple):
    """All tensors of one type."""

    dtype: torch.dtype
    start: int  # in bytes
    end: int


class Layout:
    """Where each tensor is."""

    def __init__(self, form: Form) -> None:
        self.form = form
        views: dict[str, _View] = {}
        groups, gaps, place = list[Group](), list[tuple[int, int]](), 0
        for dtype in dict.fromkeys(dtype for _, _, dtype in form):
            start = place
            for name, shape, own in form:
                if own == dtype:
                    offset = place // dtype.itemsize
                    views[name] = _View(name, len(groups), shape, _strides(shape), offset)
                    end = place + math.prod(shape) * dtype.itemsize
                    place = aligned(end)
                    gaps += [(end, place)] if end < place else []
            groups.append(Group(dtype, start, place))
        self.views = tuple(views[name] for name, _, _ in form)
        self.groups, self.gaps, self.nbytes = tuple(groups), tuple(gaps), place

    def within(self, groups: Sequence[Tensor]) -> dict[str, Tensor]:
        """The tensors by name, in pieces of memory of their own, perhaps of other types."""
        starts = [group.start // group.dtype.itemsize for group in self.groups]
        return {
            name: groups[group].as_strided(shape, strides, offset - starts[group])
            for name, group, shape, strides, offset in self.views
        }


@lru_cache(maxsize=1024)
def layout_for(form: Form) -> Layout:
    return Layout(form)


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    return tensors.layout if isinstance(tensors, FlatTensors) else layout_for(form_of(tensors))


def form_of(tensors: Mapping[str, Tensor]) -> Form:
    if isinstance(tensors, FlatTensors):
        return tensors.layout.form
    return tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items())


class FlatTensors(dict[str, Tensor]):
    """Tensors by name that are views of one piece of memory."""

    __slots__ = ("groups", "layout", "memory")

    def __init__(self, layout: Layout, memory: Tensor) -> None:
        """``memory``: bytes, as many as the layout has."""
        self.layout = layout
        self.memory = memory
        self.groups = [memory[g.start : g.end].view(g.dtype) for g in layout.groups]
        super().__init__(
            (name, self.groups[group].as_strided(shape, strides, offset))
            for name, group, shape, strides, offset in layout.views
        )

    def fill(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        """With copies of tensors of the same names, if those begin with ``prefix``."""
        with torch.no_grad():
            if isinstance(tensors, FlatTensors) and tensors.layout is self.layout and not prefix:
                self.memory.copy_(tensors.memory)
                return
            for start, end in self.layout.gaps:
                self.memory[start:end].zero_()
            for number in range(len(self.groups)):
                names = [view.name for view in self.layout.views if view.group == number]
                others = [tensors[prefix + name].detach() for name in names]
                torch._foreach_copy_([self[name] for name in names], others)


def in_one_piece(tensors: Mapping[str, Tensor]) -> FlatTensors:
    """A copy."""
    layout = layout_of(tensors)
    flat = FlatTensors(layout, torch.empty(layout.nbytes, dtype=torch.uint8))
    flat.fill(tensors)
    return flat


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
