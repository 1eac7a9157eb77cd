"""How many samples each device in the run holds, as far as it is believed.

Samples weigh a device's update and are the size of an epoch, and only the device knows how many it
has. What it claims beyond `LARGEST` times the median of the devices in the run is not counted: one
device that claims a billion would own every average, and no epoch would ever end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from fedoptima.core.errors import InvariantBroken
from fedoptima.core.influence import EQUAL, Share, unequal_share
from fedoptima.core.types import NodeId

LARGEST: Final = 10  # times the median


class Shares:
    """Of the devices that are in the run now: one that has left is part of nothing, but for an
    update that it left behind, which counts as it would have."""

    def __init__(self) -> None:
        self._held: dict[NodeId, int] = {}
        self._left: dict[NodeId, int] = {}  # what devices held that are not here now
        self._ordered: list[int] = []
        self._sum = 0

    def add(self, device: NodeId, samples: int) -> None:
        self.remove(device)
        self._left.pop(device, None)
        self._held[device] = samples
        insort(self._ordered, samples)
        self._sum += samples

    def remove(self, device: NodeId) -> None:
        samples = self._held.pop(device, None)
        if samples is not None:
            self._left[device] = samples
            del self._ordered[bisect_left(self._ordered, samples)]
            self._sum -= samples

    @property
    def largest(self) -> int:
        """That is counted; the lower median, so that one of two cannot raise it."""
        return LARGEST * self._median if self._ordered else 0

    @property
    def _median(self) -> int:
        return self._ordered[(len(self._ordered) - 1) // 2]

    @property
    def total(self) -> int:
        """Samples in an epoch."""
        largest = self.largest
        if not self._ordered or self._ordered[-1] <= largest:
            return self._sum
        believed = bisect_left(self._ordered, largest)
        return sum(self._ordered[:believed]) + largest * (len(self._ordered) - believed)

    def claimed(self, device: NodeId) -> int:
        return self._held[device] if device in self._held else self._left[device]

    def counted(self, device: NodeId) -> int:
        claimed = self.claimed(device)
        return min(claimed, self.largest or claimed)

    @property
    def mean(self) -> float:
        """0 where there is no device."""
        return self.total / max(1, len(self._ordered))

    def equal(self, batch_size: int) -> bool:
        """Does every device hold as much as the others?"""
        return not self._ordered or self._ordered[-1] - self._ordered[0] < batch_size

    def share(self, device: NodeId, batch_size: int) -> Share:
        """What the device's contributions count; as those of all others if it holds as much.

        As much is less than one batch more or less, between any two devices.
        """
        if device not in self._held or self.equal(batch_size):
            return EQUAL
        return unequal_share(
            self.counted(device),
            mean=self.mean,
            median=self._median,
            others=self.total - min(self._ordered[-1], self.largest),
            batch=min(1.0, self._held[device] / batch_size),
        )

    def portion(self, device: NodeId) -> float:
        """Of all samples that count; 0 of a device that is not here."""
        return self.counted(device) / max(1, self.total) if device in self._held else 0.0

    def epochs(self, device: NodeId, trained: int) -> float:
        """What training on this many samples is of an epoch; a share not counted does not count."""
        claimed, counted = self.claimed(device), self.counted(device)
        everything = self.total or counted  # nobody is here: the one that left was everybody
        return (trained if claimed == counted else trained * counted / claimed) / everything

    def check(self) -> None:
        if self._ordered != sorted(self._held.values()) or self._sum != sum(self._ordered):
            raise InvariantBroken("the devices' samples do not add up")
