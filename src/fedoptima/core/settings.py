"""The server's settings for a run."""

from __future__ import annotations

from dataclasses import dataclass

from fedoptima.core.stopping import StopRule


@dataclass(frozen=True, slots=True)
class ServerSettings:
    stop: StopRule
    devices: int = 1  # plan and begin when this many have joined...
    patience: float | None = None  # ...or this many seconds after the first one did
    batch_size: int = 1
    iterations: int | None = None  # H; None: one pass over the device's own samples
    evaluate_every: float = 1.0  # epochs
    drop_diverged: bool = False  # a diverged device leaves the run instead of ending it

    def iterations_for(self, samples: int) -> int:
        return self.iterations or max(1, samples // self.batch_size)
