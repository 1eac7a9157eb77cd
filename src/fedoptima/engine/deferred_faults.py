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
from fedoptima.engine.payloads import Tensors
from fedoptima.engine.value_ranges import Range, check_range


class Notes:
    """What was seen in batches of one device, on the compute device. The steps of one device come
    one after the other; those of another may run beside them, and have notes of their own.

    Few operations, since each is a kernel of its own on a GPU: both ends of a range are lowest
    values here, of the tensor and of its negative; a fault is a last value below 0.
    """

    def __init__(self, tensors: int, compute: torch.device) -> None:
        self.values = torch.full(
            (2 * tensors + 1,), math.inf, dtype=torch.float64, device=compute
        )  # of nothing at all
        self._ends, self._fault = self.values[:-1], self.values[-1]

    def forget(self) -> None:
        self.values.fill_(math.inf)

    def add(self, other: Notes) -> None:
        torch.minimum(self.values, other.values, out=self.values)

    def saw(self, ends: Tensor) -> None:
        torch.minimum(self._ends, ends, out=self._ends)

    def fault(self, fault: Tensor) -> None:
        """Above 0 if there is one; what it did was undone."""
        torch.minimum(self._fault, fault.neg(), out=self._fault)


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
        *ends, fault = numbers
        lows, highs = ends[::2], [-number for number in ends[1::2]]
        for (name, allowed), *found in zip(self._allowed.items(), lows, highs, strict=True):
            check_range(name, Range(*found), allowed)
        if fault < 0:
            raise NotFinite(WHY)


class DeferredFaults:
    def __init__(self, allowed: Mapping[str, Range], compute: torch.device) -> None:
        """``allowed``: the values that a batch may have, by the name of the tensor."""
        self._allowed = dict(allowed)
        limits = [end for low, high in self._allowed.values() for end in (low, -high)]
        self._limits = torch.tensor(limits, dtype=torch.float64, device=compute)
        self._signs = torch.tensor([1.0, -1.0] * len(allowed), dtype=torch.float64, device=compute)
        self._notes: dict[NodeId, Notes] = {}

    def notes(self, device: NodeId) -> Notes:
        if device not in self._notes:
            self._notes[device] = self.new_notes()
        return self._notes[device]

    def new_notes(self) -> Notes:
        """Of nobody yet: a recorded step has its own, which are added to a device's."""
        return Notes(len(self._allowed), self._limits.device)

    def saw(self, notes: Notes, batch: Tensors) -> Tensor:
        """Look at the values of a batch; true if it must not be used."""
        if not self._allowed:
            return torch.zeros((), dtype=torch.bool, device=self._limits.device)
        ends = [end for name in self._allowed for end in _ends(batch[name].detach())]
        found = torch.stack(ends) * self._signs
        notes.saw(found)
        # NaN among the values makes both ends NaN, and every comparison with it false.
        return ~(found >= self._limits).all()

    def of(self, device: NodeId) -> NotedFaults:
        """As of now, to be read later."""
        notes = self._notes.get(device)
        return NotedFaults(self._allowed, None if notes is None else notes.values.clone()[None])

    def forget(self, device: NodeId) -> None:
        if device in self._notes:
            self._notes[device].forget()

    def read(self) -> dict[NodeId, ProtocolViolation]:
        """Devices that something is wrong with; each is named once."""
        found = self.faults()
        for device in found:
            self.forget(device)
        return found

    def faults(self) -> dict[NodeId, ProtocolViolation]:
        """Devices that something is wrong with."""
        found: dict[NodeId, ProtocolViolation] = {}
        if not self._notes:
            return found
        rows = torch.stack([notes.values for notes in self._notes.values()]).tolist()
        for device, row in sorted(zip(self._notes, rows, strict=True)):
            try:
                NotedFaults(self._allowed, torch.tensor([row])).check()
            except ProtocolViolation as error:
                found[device] = error
        return found

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[list[NodeId], Tensors]:
        rows = enumerate(notes.values for notes in self._notes.values())
        return list(self._notes), {str(number): self._stored(row) for number, row in rows}

    def _stored(self, row: Tensor) -> Tensor:
        """Pairs: the lowest and highest value of each tensor; last 0 and 1 if there is a fault."""
        fault = (row[-1:] < 0).to(row.dtype)
        return torch.cat([row[:-1] * self._signs, row.new_zeros(1), fault]).view(-1, 2)

    def restore(self, devices: Sequence[NodeId], tensors: Tensors) -> None:
        for number, device in enumerate(devices):
            stored = tensors[str(number)].flatten()
            ends = stored[:-2] * self._signs.to(stored.device)
            self.notes(device).values.copy_(torch.cat([ends, -stored[-1:]]))


def _ends(tensor: Tensor) -> tuple[Tensor, Tensor]:
    low, high = tensor.aminmax()
    # Of a mixture torch.stack makes the widest type, which must hold a whole number exactly.
    return (low, high) if tensor.is_floating_point() else (low.double(), high.double())
