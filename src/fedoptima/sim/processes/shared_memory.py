"""Tensors that several processes see.

They lie in one anonymous mapping, which is made before the processes are forked: no file is left
behind, however they end, and its pages take memory only once they are written to.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from fedoptima.core.errors import RunFailed
from fedoptima.engine.flat import FlatTensors, Layout, aligned, layout_for, layout_of
from fedoptima.engine.payloads import Tensors

_MAP_NORESERVE = 0x4000  # mmap has a name for it from Python 3.12 on
_LENGTH = 8  # bytes that say how long the description is


class Place(NamedTuple):
    """Memory for named tensors. It begins with their names, shapes and types."""

    offset: int
    nbytes: int


class SharedMemory:
    """A mapping with a region for each process, which alone hands it out for the first time."""

    def __init__(self, regions: int) -> None:
        pages = os.sysconf("SC_PHYS_PAGES")
        self._region = pages * mmap.PAGESIZE
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._memory = mmap.mmap(-1, regions * self._region, flags=flags)
        self._layouts: dict[bytes, Layout] = {}
        self._descriptions: dict[Layout, bytes] = {}
        self._open: dict[int, tuple[bytes, FlatTensors]] = {}  # by offset: most are used again

    def region(self, number: int) -> Region:
        start = number * self._region
        return Region(self, start, start + self._region)

    def tensors(self, place: Place) -> FlatTensors:
        """What is there."""
        start = place.offset + _LENGTH
        length = int.from_bytes(self._memory[place.offset : start], "little")
        description = self._memory[start : start + length]
        known, tensors = self._open.get(place.offset, (b"", None))
        if tensors is not None and known == description:
            return tensors
        layout = self._layouts.get(description)
        if layout is None:
            layout = self._layouts[description] = layout_for(pickle.loads(description))
        return self._opened(place, layout, description)

    def new_tensors(self, place: Place, layout: Layout) -> FlatTensors:
        """To be filled."""
        known, tensors = self._open.get(place.offset, (b"", None))
        if tensors is not None and tensors.layout is layout:
            # Another process may have used the memory for something else.
            self._describe(place, known)
            return tensors
        description = self.description_of(layout)
        self._describe(place, description)
        return self._opened(place, layout, description)

    def description_of(self, layout: Layout) -> bytes:
        if layout not in self._descriptions:
            self._descriptions[layout] = pickle.dumps(layout.form)
        return self._descriptions[layout]

    def _describe(self, place: Place, description: bytes) -> None:
        text = len(description).to_bytes(_LENGTH, "little") + description
        self._memory[place.offset : place.offset + len(text)] = text

    def _opened(self, place: Place, layout: Layout, description: bytes) -> FlatTensors:
        offset = place.offset + place.nbytes - layout.nbytes
        count = layout.nbytes
        if count:
            flat = torch.frombuffer(self._memory, dtype=torch.uint8, count=count, offset=offset)
        else:
            flat = torch.empty(0, dtype=torch.uint8)
        tensors = FlatTensors(layout, flat)
        self._open[place.offset] = description, tensors
        return tensors


class Region:
    """Memory that one process hands out, each part of it once; see `FreeMemory`."""

    def __init__(self, memory: SharedMemory, start: int, end: int) -> None:
        self._memory = memory
        self._next, self._end = start, end

    def store(self, tensors: Mapping[str, Tensor], *buffers: Place | None) -> Place:
        """A copy of the tensors, in the first of ``buffers`` that they fit exactly; what is
        there already stays as it is."""
        place, stored = self.reserve(layout_of(tensors), *buffers)
        if stored is not tensors:
            stored.fill(tensors)
        return place

    def reserve(self, layout: Layout, *buffers: Place | None) -> tuple[Place, FlatTensors]:
        """Memory for tensors, to be filled; the first of ``buffers`` that they fit exactly."""
        nbytes = layout.nbytes + aligned(_LENGTH + len(self._memory.description_of(layout)))
        buffer = next((r for r in buffers if r is not None and r.nbytes == nbytes), None)
        if buffer is None:
            buffer = Place(self._take(nbytes), nbytes)
        return buffer, self._memory.new_tensors(buffer, layout)

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
        # By size: a run needs few different ones.
        self._offsets: dict[int, dict[int, None]] = {}
        self._sizes: dict[object, int] = {}
        self._used: dict[int, _Use] = {}
        self._over: deque[_Use] = deque()  # of values that nobody has any more

    def new_value(self) -> SharedTensors:
        """Its memory is free again when nobody has it any more."""
        # The callback is C code. One in Python, as a finaliser, may be where Ctrl-C raises its
        # exception, and Python drops what is raised there: the run would go on.
        value = SharedTensors(self._over.append)
        self._used[id(value.use)] = value.use
        return value

    def values(self) -> list[SharedTensors]:
        """Those that somebody has."""
        known = (use() for use in list(self._used.values()))
        return [value for value in known if value is not None]

    def _collect(self) -> None:
        while self._over:
            use = self._over.popleft()
            self._used.pop(id(use), None)  # Ctrl-C may have come before it was there
            if use.place is not None:
                self.add(*use.place)

    def add(self, offset: int, nbytes: int) -> None:
        self._offsets.setdefault(nbytes, {})[offset] = None

    def learn(self, kind: object, nbytes: int) -> None:
        """Results of this kind take so much."""
        self._sizes[kind] = nbytes

    def size_of(self, kind: object) -> int | None:
        """None: not known yet."""
        return self._sizes.get(kind)

    def buffer_for(self, kind: object, before: Place | None = None) -> Place | None:
        """``before``: preferred, since the pages of memory are known to who has used it."""
        self._collect()
        nbytes = self._sizes.get(kind)
        free = None if nbytes is None else self._offsets.get(nbytes)
        if nbytes is None or not free:
            return None
        if before is not None and before.nbytes == nbytes and before.offset in free:
            del free[before.offset]
            return before
        return Place(free.popitem()[0], nbytes)


class _Use(ref["SharedTensors"]):
    """Where a value is, also when it is gone."""

    __slots__ = ("place",)
    place: Place | None  # None: not computed yet


class SharedTensors(dict[str, Tensor]):
    """The value of a payload in the process that drives: empty until `show`.

    Another process is sent its place only.
    """

    __slots__ = ("__weakref__", "failed", "maker", "use", "waiting")

    def __init__(self, over: Callable[[_Use], None] | None = None) -> None:
        """``over`` is called when nobody has the value any more."""
        self.use = _Use(self, over)
        self.use.place = None
        self.failed = False  # and never will be computed
        self.maker: object = None  # the work whose result it is
        self.waiting: list[Any] = []  # what can go on once it is there

    @property
    def place(self) -> Place | None:
        return self.use.place

    @place.setter
    def place(self, place: Place | None) -> None:
        self.use.place = place

    def show(self, memory: SharedMemory) -> None:
        if self.place is not None and not self:
            self.update(memory.tensors(self.place))

    def __reduce__(self) -> tuple[Callable[[Place], Tensors], tuple[Place]]:
        assert self.place is not None
        return attached, (self.place,)


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
