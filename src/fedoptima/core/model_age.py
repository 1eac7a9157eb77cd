"""How far the global model has moved on since a device received it.

Merges are counted at the size of what they merged, relative to the mean share: with equal shares an
age is the number of versions. Otherwise a device with little data that hands in often would make
everybody else's updates look old (docs/decisions/0024).
"""

from __future__ import annotations

from fedoptima.core.types import NodeId


class ModelAge:
    def __init__(self) -> None:
        self._now = 0.0
        self._received: dict[NodeId, tuple[int, float]] = {}  # version and age of its model
        self._left: dict[NodeId, float] = {}  # the age when a device left
        self._missed: dict[NodeId, float] = {}  # merged while a device was away with its work

    def merged(self, size: float) -> None:
        self._now += size

    def sent(self, device: NodeId, version: int) -> None:
        self._received[device] = (version, self._now)
        self._missed.pop(device, None)

    def left(self, device: NodeId) -> None:
        self._left[device] = self._now

    def away(self, device: NodeId) -> float:
        """How much was merged since the device left, or before it was here."""
        return self._now - self._left.get(device, 0.0)

    def back_with_work(self, device: NodeId) -> None:
        if device in self._left:
            away = self._now - self._left.pop(device)
            self._missed[device] = self._missed.get(device, 0.0) + away

    def behind(self, device: NodeId, version: int, latest: int) -> float:
        """How much was merged since the device received ``version``."""
        known, then = self._received.get(device, (-1, 0.0))
        # Another one: from before a restart with an older checkpoint.
        return self._now - then if known == version else float(latest - version)

    def missed(self, device: NodeId) -> float:
        """How much was merged while the device was away with the round it now hands in."""
        return self._missed.get(device, 0.0)
