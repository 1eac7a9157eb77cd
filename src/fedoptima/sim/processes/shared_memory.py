"""Tensors that several processes see.

They lie in one anonymous mapping, which is made before the processes are forked: no file is left
behind, however they end, and its pages take memory only once they are written to.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedoptima.core.errors import RunFailed
from fedoptima.engine.payloads import Tensors

# How a kernel rounds may depend on the alignment of its operands; this is torch's own.
_ALIGNMENT = 64
_MAP_NORESERVE = 0x4000  # mmap has a name for it from Python 3.12 on

Layout = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


class Place(NamedTuple):
    """Where named tensors are."""

    offset: int
    nbytes: int
    layout: Layout


class Room(NamedTuple):
    """Memory for named tensors."""

    offset: int
    nbytes: int


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    return tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items())


class SharedMemory:
    """A mapping with a region for each process, which only that process hands out."""

    def __init__(self, regions: int) -> None:
        pages = os.sysconf("SC_PHYS_PAGES")
        self._region = pages * mmap.PAGESIZE
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._memory = mmap.mmap(-1, regions * self._region, flags=flags)

    def region(self, number: int) -> Region:
        start = number * self._region
        return Region(self, start, start + self._region)

    def tensors(self, place: Place) -> Tensors:
        offset, found = place.offset, {}
        for name, shape, dtype in place.layout:
            count = 1
            for size in shape:
                count *= size
            if count:
                flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset)
                found[name] = flat.view(shape)
            else:
                found[name] = torch.empty(shape, dtype=dtype)
            offset += _aligned(count * dtype.itemsize)
        return found


class Region:
    """Memory that one process hands out, each part of it once; see `FreeMemory`."""

    def __init__(self, memory: SharedMemory, start: int, end: int) -> None:
        self._memory = memory
        self._next, self._end = start, end

    def store(self, tensors: Mapping[str, Tensor], room: Room | None = None) -> Place:
        """A copy of the tensors. ``room``: memory to use if they fit exactly."""
        layout = layout_of(tensors)
        nbytes = sum(_aligned(tensor.nbytes) for tensor in tensors.values())
        fits = room is not None and room.nbytes == nbytes
        place = Place(
            room.offset if room is not None and fits else self._take(nbytes), nbytes, layout
        )
        copies = self._memory.tensors(place)
        for name, tensor in tensors.items():
            copies[name].copy_(tensor.detach())
        return place

    def _take(self, nbytes: int) -> int:
        offset, self._next = self._next, self._next + nbytes
        if self._next > self._end:
            raise RunFailed("the tensors in use take more than this machine's memory")
        return offset


class FreeMemory:
    """What was used and is not any more. The driving process lends it with an order.

    Each process by itself would keep as much as it has ever used at once, and they take turns.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, list[int]] = {}  # by size: a run needs few different ones
        self._sizes: dict[object, int] = {}

    def add(self, offset: int, nbytes: int) -> None:
        self._offsets.setdefault(nbytes, []).append(offset)

    def learn(self, kind: object, nbytes: int) -> None:
        """Results of this kind take so much."""
        self._sizes[kind] = nbytes

    def room_for(self, kind: object) -> Room | None:
        nbytes = self._sizes.get(kind)
        if nbytes is None or not self._offsets.get(nbytes):
            return None
        return Room(self._offsets[nbytes].pop(), nbytes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class SharedTensors(dict[str, Tensor]):
    """The value of a payload in the process that drives: empty until `show`.

    Another process is sent its place only.
    """

    __slots__ = ("__weakref__", "failed", "maker", "place", "release", "waiting")

    def __init__(self, release: Callable[[Place], None]) -> None:
        self.place: Place | None = None  # None: not computed yet
        self.failed = False  # and never will be
        self.release = release
        self.maker: object = None  # the work whose result it is
        self.waiting: list[Any] = []  # what can go on once it is there

    def show(self, memory: SharedMemory) -> None:
        if self.place is not None and not self:
            self.update(memory.tensors(self.place))

    def __reduce__(self) -> tuple[Callable[[Place], Tensors], tuple[Place]]:
        assert self.place is not None
        return attached, (self.place,)

    def __del__(self) -> None:
        if self.place is not None:
            self.release(self.place)


# ---- in a process that was forked ----------------------------------------------------------------

_memory: SharedMemory | None = None


def attach(memory: SharedMemory) -> None:
    """Make `attached` use this memory."""
    global _memory
    _memory = memory


def attached(place: Place) -> Tensors:
    """What a `SharedTensors` is in the process that it was sent to."""
    assert _memory is not None
    return _memory.tensors(place)
