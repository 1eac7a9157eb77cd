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
        # By device, a row for each tensor: the lowest and highest value in its batches; and one
        # whose second number is above 0 if a step or a merge would have made the model infinite.
        self._seen: dict[NodeId, Tensor] = {}

    def saw(self, device: NodeId, batch: Tensors) -> Tensor:
        """Look at the values of a batch; true if it must not be used."""
        # NaN among the values makes both results NaN, and every comparison with it false.
        pairs = [torch.stack(batch[name].detach().aminmax()).double() for name in self._allowed]
        found = torch.stack(pairs)
        lows, highs = found[:, 0], found[:, 1]
        inside = (lows >= self._limits[:, 0]) & (highs <= self._limits[:, 1])
        seen = self._row(device)
        seen[:-1, 0] = torch.minimum(seen[:-1, 0], lows)
        seen[:-1, 1] = torch.maximum(seen[:-1, 1], highs)
        return ~inside.all()

    def note(self, device: NodeId, fault: Tensor) -> None:
        """``fault``: above 0 if there is one; what it did was undone."""
        seen = self._row(device)
        seen[-1, 1] = torch.maximum(seen[-1, 1], fault.to(seen.dtype))

    def _row(self, device: NodeId) -> Tensor:
        if device not in self._seen:
            self._seen[device] = self._nothing()
        return self._seen[device]

    def _nothing(self) -> Tensor:
        rows = [(math.inf, -math.inf)] * len(self._allowed)  # of no value at all
        return torch.tensor([*rows, (0.0, 0.0)], dtype=torch.float64, device=self._limits.device)

    def of(self, device: NodeId) -> NotedFaults:
        """As of now, to be read later."""
        return NotedFaults(self._allowed, self._seen.get(device))

    def forget(self, device: NodeId) -> None:
        self._seen.pop(device, None)

    def read(self) -> dict[NodeId, ProtocolViolation]:
        """Devices that something is wrong with; each is named once."""
        found: dict[NodeId, ProtocolViolation] = {}
        for device in sorted(self._seen):
            try:
                self.of(device).check()
            except ProtocolViolation as error:
                found[device] = error
                self.forget(device)
        return found

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[list[NodeId], Tensors]:
        return list(self._seen), {str(n): row.clone() for n, row in enumerate(self._seen.values())}

    def restore(self, devices: Sequence[NodeId], tensors: Tensors) -> None:
        self._seen = {device: tensors[str(n)].clone() for n, device in enumerate(devices)}
