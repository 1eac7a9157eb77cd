"""What is wrong with a device's batches, noted while they train the server side and read later.

A simulation does not read a number after every step: that would make its tensor work wait for
itself. A batch with bad values trains nothing (the step is undone on the spot), and the device
is dropped when its next update arrives, or at the next evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedoptima.core.errors import NotFinite, ProtocolViolation
from fedoptima.core.types import NodeId
from fedoptima.engine.faults import WHY
from fedoptima.engine.host_copy import HostCopy
from fedoptima.engine.payload_validation import Range, check_range
from fedoptima.engine.payloads import Tensors

_ROOM = 256  # devices, at first


class NotedFaults:
    """What was noted about one device so far."""

    def __init__(self, allowed: Mapping[str, Range], seen: Tensor | None) -> None:
        self._allowed = allowed
        self._copy = None if seen is None else HostCopy(seen)

    def check(self) -> None:
        """Raise ProtocolViolation if something was wrong."""
        if self._copy is None:
            return
        *ranges, (_, infinite) = self._copy.read()
        for (name, allowed), found in zip(self._allowed.items(), ranges, strict=True):
            check_range(name, Range(*found), allowed)
        if infinite > 0:
            raise NotFinite(WHY)


class DeferredFaults:
    def __init__(self, allowed: Mapping[str, Range], compute: torch.device) -> None:
        """``allowed``: the values that a batch may have, by the name of the tensor."""
        self._allowed = dict(allowed)
        self._limits = torch.tensor([*self._allowed.values()] or [(0, 0)], dtype=torch.float64)
        self._limits = self._limits.to(compute)
        # For each device and tensor, the lowest and highest value in its batches; in a last row,
        # second, a number above 0 if a step or merge would have made the model infinite.
        self._table = self._nothing(_ROOM)
        self._places: dict[NodeId, Tensor] = {}

    def place(self, device: NodeId) -> Tensor:
        """Where a device's notes are, as a tensor: a recorded step can be told the device by it."""
        if device not in self._places:
            number = len(self._places)
            if number == len(self._table):
                self._table = torch.cat([self._table, self._nothing(number)])
            self._places[device] = torch.tensor([number], device=self._limits.device)
        return self._places[device]

    @property
    def room(self) -> int:
        """Once it changes, the notes have moved, and what was recorded is void."""
        return len(self._table)

    def saw(self, place: Tensor, batch: Tensors) -> Tensor:
        """Look at the values of a batch; true if it must not be used."""
        # NaN among the values makes both results NaN, and every comparison with it false.
        pairs = [torch.stack(batch[name].detach().aminmax()).double() for name in self._allowed]
        found = torch.stack(pairs)
        lows, highs = found[:, 0], found[:, 1]
        inside = (lows >= self._limits[:, 0]) & (highs <= self._limits[:, 1])
        seen = self._table.index_select(0, place)
        seen[0, :-1, 0] = torch.minimum(seen[0, :-1, 0], lows)
        seen[0, :-1, 1] = torch.maximum(seen[0, :-1, 1], highs)
        self._table.index_copy_(0, place, seen)
        return ~inside.all()

    def note(self, place: Tensor, fault: Tensor) -> None:
        """``fault``: above 0 if there is one; what it did was undone."""
        seen = self._table.index_select(0, place)
        seen[0, -1, 1] = torch.maximum(seen[0, -1, 1], fault.to(seen.dtype))
        self._table.index_copy_(0, place, seen)

    def _nothing(self, devices: int) -> Tensor:
        rows = [(math.inf, -math.inf)] * len(self._allowed)  # of no value at all
        one = torch.tensor([*rows, (0.0, 0.0)], dtype=torch.float64, device=self._limits.device)
        return one.repeat(devices, 1, 1)

    def of(self, device: NodeId) -> NotedFaults:
        """As of now, to be read later."""
        return NotedFaults(self._allowed, self._row(device) if device in self._places else None)

    def _row(self, device: NodeId) -> Tensor:
        return self._table.index_select(0, self._places[device])[0]

    def forget(self, device: NodeId) -> None:
        if device in self._places:
            self._table.index_copy_(0, self._places[device], self._nothing(1))

    def read(self) -> dict[NodeId, ProtocolViolation]:
        """Devices that something is wrong with; each is named once."""
        found = self.faults()
        for device in found:
            self.forget(device)
        return found

    def faults(self) -> dict[NodeId, ProtocolViolation]:
        """Devices that something is wrong with."""
        found: dict[NodeId, ProtocolViolation] = {}
        rows = self._table.tolist() if self._places else []
        for device, place in sorted(zip(self._places, range(len(self._places)), strict=True)):
            try:
                NotedFaults(self._allowed, torch.tensor(rows[place])).check()
            except ProtocolViolation as error:
                found[device] = error
        return found

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[list[NodeId], Tensors]:
        return list(self._places), {str(n): self._row(d) for n, d in enumerate(self._places)}

    def restore(self, devices: Sequence[NodeId], tensors: Tensors) -> None:
        for number, device in enumerate(devices):
            self._table.index_copy_(0, self.place(device), tensors[str(number)][None])
