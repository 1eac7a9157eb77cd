"""What a server needs to know about its run."""

from __future__ import annotations

from dataclasses import dataclass

from fedoptima.core.stopping import StopRule


@dataclass(frozen=True, slots=True)
class ServerSettings:
    stop: StopRule
    devices: int = 1  # plan and begin when this many have joined...
    patience: float | None = None  # ...or this many seconds after the first one did
    batch_size: int = 1
    iterations: int | None = None  # H; None: see iterations_for
    evaluate_every: float = 1.0  # epochs
    drop_diverged: bool = False  # a diverged device leaves the run instead of ending it

    def iterations_for(self, samples: int, mean: float) -> int:
        """H: one pass over the device's own samples, or over a mean share if that differs by a
        batch or more. Otherwise a device with little data would hand in so often that the updates
        of all others are old when they come."""
        alike = abs(samples - mean) < self.batch_size
        return self.iterations or max(1, (samples if alike else int(mean)) // self.batch_size)
