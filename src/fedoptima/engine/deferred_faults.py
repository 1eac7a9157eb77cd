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
        [numbers] = self._copy.read()
        *ends, infinite = numbers
        lows, highs = ends[::2], [-number for number in ends[1::2]]
        for (name, allowed), *found in zip(self._allowed.items(), lows, highs, strict=True):
            check_range(name, Range(*found), allowed)
        if infinite > 0:
            raise NotFinite(WHY)


class DeferredFaults:
    def __init__(self, allowed: Mapping[str, Range], compute: torch.device) -> None:
        """``allowed``: the values that a batch may have, by the name of the tensor."""
        self._allowed = dict(allowed)
        # Few operations look at a batch, since each is a kernel of its own on a GPU: both ends of
        # a range are lowest values here, of the tensor and of its negative.
        limits = [(allowed.low, -allowed.high) for allowed in self._allowed.values()]
        self._limits = torch.tensor(limits, dtype=torch.float64, device=compute).reshape(-1, 2)
        self._signs = torch.tensor([1.0, -1.0] * len(limits), dtype=torch.float64, device=compute)
        self._nowhere = torch.tensor(math.inf, dtype=torch.float64, device=compute)
        self._places: dict[NodeId, Tensor] = {}
        # For each device: the ends of the ranges of its batches; above 0 if a step or merge would
        # have made the model infinite.
        self._ends = self._no_ends(_ROOM)
        self._infinite = torch.zeros(_ROOM, device=compute)
        self._numbers = torch.arange(_ROOM, device=compute)

    def place(self, device: NodeId) -> Tensor:
        """Where a device's notes are, as a tensor: a recorded step can be told the device by it."""
        if device not in self._places:
            number = len(self._places)
            if number == self.room:
                self._ends = torch.cat([self._ends, self._no_ends(number)])
                self._infinite = torch.cat([self._infinite, torch.zeros_like(self._infinite)])
                self._numbers = torch.arange(2 * number, device=self._numbers.device)
            self._places[device] = torch.tensor([number], device=self._limits.device)
        return self._places[device]

    @property
    def room(self) -> int:
        """Once it changes, the notes have moved, and what was recorded is void."""
        return len(self._numbers)

    def saw(self, place: Tensor, batch: Tensors) -> Tensor:
        """Look at the values of a batch; true if it must not be used."""
        ends = [end for name in self._allowed for end in _ends(batch[name].detach())]
        found = (torch.stack(ends) * self._signs).view(-1, 2)
        at = (self._numbers == place)[:, None, None]
        torch.minimum(self._ends, torch.where(at, found, self._nowhere), out=self._ends)
        # NaN among the values makes both ends NaN, and every comparison with it false.
        return ~(found >= self._limits).all()

    def note(self, place: Tensor, fault: Tensor) -> None:
        """``fault``: above 0 if there is one; what it did was undone."""
        noted = torch.where(self._numbers == place, fault, 0.0)
        torch.maximum(self._infinite, noted, out=self._infinite)

    def _no_ends(self, devices: int) -> Tensor:
        """Of no value at all."""
        return self._nowhere.repeat(devices, len(self._allowed), 2)

    def of(self, device: NodeId) -> NotedFaults:
        """As of now, to be read later."""
        return NotedFaults(self._allowed, self._row(device) if device in self._places else None)

    def _row(self, device: NodeId) -> Tensor:
        place = self._places[device]
        ends = self._ends.index_select(0, place).view(1, -1)
        return torch.cat([ends, self._infinite.index_select(0, place)[None]], dim=1)

    def forget(self, device: NodeId) -> None:
        if device in self._places:
            at = self._numbers == self._places[device]
            self._ends.masked_fill_(at[:, None, None], math.inf)
            self._infinite.masked_fill_(at, 0.0)

    def read(self) -> dict[NodeId, ProtocolViolation]:
        """Devices that something is wrong with; each is named once."""
        found = self.faults()
        for device in found:
            self.forget(device)
        return found

    def faults(self) -> dict[NodeId, ProtocolViolation]:
        """Devices that something is wrong with."""
        found: dict[NodeId, ProtocolViolation] = {}
        count = len(self._places)
        rows = torch.cat([self._ends[:count].flatten(1), self._infinite[:count, None]], dim=1)
        for device, row in sorted(zip(self._places, rows.tolist(), strict=True)):
            try:
                NotedFaults(self._allowed, torch.tensor([row])).check()
            except ProtocolViolation as error:
                found[device] = error
        return found

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[list[NodeId], Tensors]:
        rows = enumerate(self._row(device)[0] for device in self._places)
        return list(self._places), {str(number): self._stored(row) for number, row in rows}

    def _stored(self, row: Tensor) -> Tensor:
        """Pairs: the lowest and highest value of each tensor; last 0 and the fault."""
        return torch.cat([row[:-1] * self._signs, row.new_zeros(1), row[-1:]]).view(-1, 2)

    def restore(self, devices: Sequence[NodeId], tensors: Tensors) -> None:
        for number, device in enumerate(devices):
            place, stored = int(self.place(device)), tensors[str(number)].flatten()
            self._ends[place] = (stored[:-2] * self._signs).view(-1, 2)
            self._infinite[place] = stored[-1]


def _ends(tensor: Tensor) -> tuple[Tensor, Tensor]:
    low, high = tensor.aminmax()
    # Of a mixture torch.stack makes the widest type, which must hold a whole number exactly.
    return (low, high) if tensor.is_floating_point() else (low.double(), high.double())
