"""What goes wrong in a simulated fleet, and when.

Scripted changes are for tests and examples; `Churn` is the paper's unstable environment
(section 6.4): every interval each device leaves with probability p or gets a new bandwidth, and
a device that is away comes back with probability 1 - p.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fedoptima.core.seeding import derive
from fedoptima.core.types import NodeId

ChangeKind = Literal["leave", "return", "cut", "restore", "hang", "bandwidth"]


@dataclass(frozen=True, slots=True)
class Change:
    """leave/return: the process ends and is restarted; cut/restore: only the connection is lost;
    hang: the device stays connected but does nothing any more."""

    at: float
    device: NodeId
    kind: ChangeKind
    bytes_per_second: float = 0.0  # bandwidth: of each direction


@dataclass(frozen=True, slots=True)
class Churn:
    seed: int
    every: float  # seconds
    leave_probability: float  # p
    slowest: float  # bytes per second
    fastest: float

    def changes(self, tick: int, present: dict[NodeId, bool]) -> Iterator[Change]:
        """What happens at the given tick, for devices in the given order."""
        now = tick * self.every
        for device, is_present in present.items():
            draw = random.Random(derive(self.seed, "churn", tick, device))
            leaves = draw.random() < self.leave_probability
            bandwidth = draw.uniform(self.slowest, self.fastest)
            if leaves:
                if is_present:
                    yield Change(now, device, "leave")
                continue
            yield Change(now, device, "bandwidth", bandwidth)
            if not is_present:
                yield Change(now, device, "return")
