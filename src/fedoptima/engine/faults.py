"""Which devices have sent something that made the server's model infinite; what it did was undone.

On a CPU the job fails at once. On a GPU reading a number would make every step wait for it, so the
device is named when its next update is merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedoptima.core.errors import TrainingDiverged
from fedoptima.core.types import NodeId
from fedoptima.engine.host_copy import HostCopy

WHY = (
    "its data would have made the server's model infinite, which was undone. If other devices are "
    "dropped for the same reason, the training has diverged: lower the learning rate, set clip_norm"
)


class Faults:
    def __init__(self) -> None:
        self._flags: dict[NodeId, Tensor] = {}
        self._copies: dict[NodeId, HostCopy] = {}
        self._known: list[NodeId] = []  # from before a checkpoint

    def note(self, device: NodeId, fault: Tensor) -> None:
        """``fault``: above 0 if there is one."""
        if not fault.is_cuda:
            if fault > 0:
                raise TrainingDiverged(WHY)
            return
        before = self._flags.get(device)
        flag = fault if before is None else torch.maximum(before, fault)
        self._flags[device] = flag
        self._copies[device] = HostCopy(flag.reshape(1, 1))

    def named(self, devices: Sequence[NodeId]) -> dict[int, str]:
        """Those of ``devices`` that are faulty, by number; each is named once."""
        found = {number for number, device in enumerate(devices) if self._is_faulty(device)}
        for number in found:
            self._flags.pop(devices[number], None)
            self._copies.pop(devices[number], None)
        self._known = [d for d in self._known if d not in {devices[n] for n in found}]
        return dict.fromkeys(sorted(found), WHY)

    def _is_faulty(self, device: NodeId) -> bool:
        copy = self._copies.get(device)
        return device in self._known or (copy is not None and copy.read()[0][0] > 0)

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> list[NodeId]:
        devices = dict.fromkeys([*self._known, *self._copies])
        return [device for device in devices if self._is_faulty(device)]

    def restore(self, devices: Iterable[NodeId]) -> None:
        self._known = list(devices)
