"""Memory that two processes share: one puts tensors there, the other uses them where they are.

The writer gives out blocks and gets each back when the reader's tensors in it are gone. The arena
is as large as it could ever have to be; what was never written takes no memory.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedoptima.runtime.wire.tensors import Forms

_ALIGNED: Final = 64  # bytes: for the vector instructions of any processor
_PAGE: Final = 4096
_PINNED_AT_ONCE: Final = 64 << 20  # bytes

Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the arena. Ordered by where it begins."""

    begin: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.begin + self.nbytes


@dataclass(frozen=True, slots=True)
class Stored:
    """Tensors in the arena, as one process tells the other of them."""

    block: Block
    forms: dict[str, tuple[tuple[int, ...], torch.dtype]]


def create(nbytes: int) -> int:
    """A file in memory, which is gone with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedoptima", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes)
    return descriptor


class Placed(dict[str, Tensor]):
    """Tensors that the writer has put into a block. They go with it, unless it is handed on."""

    def __init__(
        self, tensors: dict[str, Tensor], stored: Stored, given_back: weakref.finalize[..., Bytes]
    ) -> None:
        super().__init__(tensors)
        self._stored = stored
        self._given_back = given_back

    def hand_on(self) -> Stored:
        """The reader says when the block is free."""
        self._given_back.detach()
        return self._stored


class Arena:
    def __init__(self, descriptor: int) -> None:
        self.nbytes = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, self.nbytes)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._free = [(0, self.nbytes)]  # (begin, bytes), in order; neighbours are joined
        self._taken: dict[int, int] = {}
        self._pinned = 0

    # ---- the writer --------------------------------------------------------------------------

    def place(self, forms: Forms) -> Placed | None:
        """Tensors in a fresh block; None: there is no room now."""
        needed = max(_layout(forms)[1], 1)
        block = self._take(-(-needed // _PAGE) * _PAGE)
        if block is None:
            return None
        view = self._view(block)
        stored = Stored(
            block, {name: (tuple(shape), dtype) for name, (shape, dtype) in forms.items()}
        )
        return Placed(self._tensors(view, forms), stored, _when_gone(view, self.give_back, block))

    def put(self, tensors: Mapping[str, Tensor]) -> Stored | None:
        """A copy of them; None: there is no room now."""
        placed = self.place({name: (tuple(t.shape), t.dtype) for name, t in tensors.items()})
        if placed is None:
            return None
        for name, tensor in tensors.items():
            placed[name].copy_(tensor)
        return placed.hand_on()

    def give_back(self, block: Block) -> None:
        """The reader does not need it any more."""
        if self._taken.pop(block.begin, None) is None:
            return
        insort(self._free, (block.begin, block.nbytes))
        joined: list[tuple[int, int]] = []
        for begin, nbytes in self._free:
            if joined and sum(joined[-1]) == begin:
                joined[-1] = (joined[-1][0], joined[-1][1] + nbytes)
            else:
                joined.append((begin, nbytes))
        self._free = joined

    @property
    def taken(self) -> int:
        """Bytes of blocks that are in use."""
        return sum(self._taken.values())

    def _take(self, nbytes: int) -> Block | None:
        """From the first place that has room: pages that are in memory already are used again."""
        for index, (begin, room) in enumerate(self._free):
            if room >= nbytes:
                rest = [(begin + nbytes, room - nbytes)] if room > nbytes else []
                self._free[index : index + 1] = rest
                self._taken[begin] = nbytes
                return Block(begin, nbytes)
        return None

    # ---- the reader --------------------------------------------------------------------------

    def read(self, stored: Stored, gone: Callable[[Block], None]) -> dict[str, Tensor]:
        """The tensors themselves; ``gone`` is called when nobody has any of them any more."""
        view = self._view(stored.block)
        _when_gone(view, gone, stored.block)
        return self._tensors(view, stored.forms)

    def pin(self, block: Block) -> None:
        """Let a GPU copy from the block by itself. Done once for each part of the arena."""
        if block.end > self._pinned:
            begin = self._pinned
            self._pinned = min(-(-block.end // _PINNED_AT_ONCE) * _PINNED_AT_ONCE, self.nbytes)
            address = self._bytes.ctypes.data + begin
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(runtime.cudaHostRegister(address, self._pinned - begin, 0))

    def _view(self, block: Block) -> Bytes:
        """An object of its own, which lives as long as the tensors that are made from it."""
        return self._bytes[block.begin : block.end]

    @staticmethod
    def _tensors(view: Bytes, forms: Forms) -> dict[str, Tensor]:
        found = {}
        for (name, (shape, dtype)), place in zip(forms.items(), _layout(forms)[0], strict=True):
            if count := math.prod(shape):
                flat = torch.frombuffer(view, dtype=dtype, count=count, offset=place)
            else:  # it holds the block, too
                flat = torch.from_numpy(view)[:0].view(dtype)
            found[name] = flat.reshape(tuple(shape))
        return found


def _when_gone(
    view: Bytes, gone: Callable[[Block], None], block: Block
) -> weakref.finalize[..., Bytes]:
    finalizer = weakref.finalize(view, gone, block)
    finalizer.atexit = False
    return finalizer


def _layout(forms: Forms) -> tuple[list[int], int]:
    """Where each tensor begins in its block, and the bytes of all."""
    places, end = [], 0
    for shape, dtype in forms.values():
        places.append(end)
        end += -(-_nbytes(shape, dtype) // _ALIGNED) * _ALIGNED
    return places, end


def _nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize
