"""Which devices have sent something that made the server's model infinite; what it did was undone.

On a CPU the job fails at once. On a GPU reading a number would make every step wait for it, so the
device is named when its next update is merged, and the flags of all are read at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedoptima.core.errors import TrainingDiverged
from fedoptima.core.types import NodeId

WHY = (
    "its data would have made the server's model infinite, which was undone. If other devices are "
    "dropped for the same reason, the training has diverged: lower the learning rate, set clip_norm"
)


class Faults:
    def __init__(self) -> None:
        self._flags: dict[NodeId, Tensor] = {}  # on a GPU
        self._known: list[NodeId] = []  # from before a checkpoint

    def note(self, device: NodeId, fault: Tensor) -> None:
        """``fault``: above 0 if there is one. Its memory may be used again."""
        if not fault.is_cuda:
            if fault.item() > 0:
                raise TrainingDiverged(WHY)
            return
        flag = self._flags.get(device)
        if flag is None:
            self._flags[device] = fault.clone()
        else:
            torch.maximum(flag, fault, out=flag)

    def named(self, devices: Sequence[NodeId]) -> dict[int, str]:
        """Those of ``devices`` that are faulty, by number; each is named once."""
        faulty = self._faulty(devices)
        found = {number for number, device in enumerate(devices) if device in faulty}
        for number in found:
            self._flags.pop(devices[number], None)
        self._known = [d for d in self._known if d not in {devices[n] for n in found}]
        return dict.fromkeys(sorted(found), WHY)

    def _faulty(self, devices: Iterable[NodeId]) -> set[NodeId]:
        noted = [device for device in dict.fromkeys(devices) if device in self._flags]
        if not noted:
            return set(self._known)
        flags = torch.stack([self._flags[device] for device in noted]).tolist()
        return {*self._known, *(d for d, flag in zip(noted, flags, strict=True) if flag > 0)}

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> list[NodeId]:
        faulty = self._faulty(self._flags)
        return [d for d in dict.fromkeys([*self._known, *self._flags]) if d in faulty]

    def restore(self, devices: Iterable[NodeId]) -> None:
        self._known = list(devices)
