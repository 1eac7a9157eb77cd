"""A learner's weights and buffers, and the memory that they are in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from torch import Tensor

from fedoptima.engine.flat import FlatTensors, Layout, in_one_piece, layout_of
from fedoptima.engine.payloads import Tensors, copy_all, copy_of

MemoryFor = Callable[[Layout], FlatTensors]  # somebody's, for tensors that are to be loaded


class _Memory(Enum):
    BORROWED = "borrowed"  # the network's first tensors
    OWN = "own"
    GIVEN = "given"  # somebody's, who gets it back with the weights in it
    SPARE = "spare"  # there is memory for those that are to be loaded
    NONE = "none"  # handed over; others are to be loaded


class Weights:
    def __init__(self, tensors: Tensors, *, static: bool) -> None:
        """``tensors``: leaves, which are always the same ones.

        ``static``: all of them stay where they are, as a recorded CUDA graph needs them.
        """
        self.tensors = tensors
        self._static = static
        self._memory = _Memory.BORROWED
        self._flat: FlatTensors | None = None  # where they are, if that is one piece of memory
        on_cpu = all(tensor.device.type == "cpu" for tensor in tensors.values())
        # A tensor with two names would have two places.
        self._in_one_piece = on_cpu and not static and len({*tensors.values()}) == len(tensors)
        if static:
            self.take_in(tensors)

    def read(self) -> Tensors:
        """To be read, not kept."""
        return self.tensors if self._flat is None else self._flat

    def held(self) -> Tensors:
        """None, if the next ones are to be loaded first."""
        held = (_Memory.BORROWED, _Memory.OWN, _Memory.GIVEN)
        return self.read() if self._memory in held else {}

    def load(self, tensors: Mapping[str, Tensor], memory: MemoryFor | None) -> None:
        """Copy them. ``memory``: where to, if they can be in one piece; else own memory."""
        if memory is None or not self._in_one_piece:
            self.take_in(tensors)
            return
        flat = memory(layout_of(tensors))
        flat.fill(tensors)
        self._move(flat)
        self._memory = _Memory.GIVEN

    def _move(self, flat: FlatTensors) -> None:
        self._flat = flat
        for name, tensor in self.tensors.items():
            tensor.data = flat[name]

    def take_in(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        """Copy those of the same names, if they begin with ``prefix``."""
        if self._memory in (_Memory.OWN, _Memory.SPARE, _Memory.GIVEN):
            if self._flat is not None:
                self._flat.fill(tensors, prefix)
            else:
                copy_all(self.tensors, tensors, prefix)
        elif self._in_one_piece:
            if prefix or not isinstance(tensors, FlatTensors):
                tensors = {name: tensors[prefix + name] for name in self.tensors}
            self._move(in_one_piece(tensors))
        else:
            for name, tensor in self.tensors.items():
                tensor.data = tensors[prefix + name].detach().clone()
        if self._memory is not _Memory.GIVEN:
            self._memory = _Memory.OWN

    def hand_over(self) -> Tensors:
        """They are gone then until others are loaded."""
        if self._static:
            return copy_of(self.tensors)
        tensors = self.lend()
        self.release()
        return tensors

    def lend(self) -> Tensors:
        """To be copied at once: others are loaded in their place. Not if memory was given."""
        flat = self._flat
        self.spare()
        if flat is not None:
            return flat
        return {name: tensor.detach() for name, tensor in self.tensors.items()}

    def spare(self) -> None:
        """They are not needed any more; their memory is."""
        if self._memory is _Memory.OWN and not self._static:
            self._memory = _Memory.SPARE
        elif self._memory is _Memory.GIVEN:
            self._memory, self._flat = _Memory.NONE, None

    def release(self) -> None:
        """Hold no memory until others are loaded."""
        self._memory, self._flat = _Memory.NONE, None
        for tensor in self.tensors.values():
            tensor.data = tensor.new_empty(0)
