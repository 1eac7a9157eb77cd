"""What a device's contributions may count, by its share of the data.

The paper's devices hold equal shares. Shares that differ by less than one batch count as equal, and
nothing here changes a run then. Otherwise contributions count in proportion to the samples held,
as in FedAvg, and a small device cannot make up for its size by being quick (docs/decisions/0024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedoptima.core.types import NodeId

# A device that holds next to nothing has at most this many times the influence that its share of
# the data gives it; the limit rises with its share and ends at the mean share.
INFLUENCE_FACTOR: Final = 4.0


@dataclass(frozen=True, slots=True)
class Share:
    """A device's data, compared with that of all devices in the run."""

    size: float = 1.0  # relative to the mean: what its contributions count
    limit: float = 1.0  # the most of all influence that it may have; 1: no limit
    batch: float = 1.0  # its batches relative to full ones: its rounds are that much shorter
    work: float = 1.0  # what its training counts of rounds and epochs: relative to the median, to 1

    @property
    def update(self) -> float:
        """What one of its updates counts, in rounds of a device with the mean share."""
        return self.size * self.batch


EQUAL: Final = Share()


def unequal_share(samples: int, *, mean: float, median: int, others: int, batch: float) -> Share:
    """``others``: what all devices but the largest hold. Limits are relative to it, so that the
    small devices can go on by themselves while the largest is silent."""
    size, limit = samples / mean, 1.0
    if size < 1:
        limit = min(1.0, INFLUENCE_FACTOR * samples / others / (1 - size))
    return Share(size, limit, batch, min(1.0, samples / median))


class Allowance:
    """Holds every device to its limit of what all have contributed together."""

    def __init__(self) -> None:
        self._total = 1.0  # the model that the run began with counts as one
        self._used: dict[NodeId, float] = {}

    def take(self, device: NodeId, share: Share, wanted: float) -> float:
        """What the device may contribute now, at most what is wanted."""
        if share == EQUAL:
            return wanted
        granted = wanted
        if share.limit < 1:  # so that used + granted <= limit * (total + granted)
            used = self._used.get(device, 0.0)
            room = (share.limit * self._total - used) / (1 - share.limit)
            granted = min(wanted, max(0.0, room))
        self.add(device, granted)
        return granted

    def add(self, device: NodeId, amount: float) -> None:
        self._used[device] = self._used.get(device, 0.0) + amount
        self._total += amount
