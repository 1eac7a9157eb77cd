"""What a server needs to know about its run, and how long a round should take."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_high

from fedoptima.core.events import JobDone
from fedoptima.core.jobs import PlanRun
from fedoptima.core.plan import recorded_plan
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
    seed: int = 0

    def iterations_for(self, samples: int, mean: float) -> int:
        """H: one pass over the device's own samples, or over a mean share if that differs by a
        batch or more. Otherwise a device with little data would hand in so often that the updates
        of all others are old when they come."""
        alike = abs(samples - mean) < self.batch_size
        return self.iterations or max(1, (samples if alike else int(mean)) // self.batch_size)


def predicted_round(planned: JobDone, settings: ServerSettings, largest: int) -> float:
    """Seconds for one pass over its data by the median of the devices planned for.

    0 where nothing is known. ``largest``: the share that is counted at most.
    """
    plan = recorded_plan(planned.text)
    if plan is None or not isinstance(planned.job, PlanRun) or not planned.job.devices:
        return 0.0

    def seconds(samples: int, flops_per_second: float, bytes_per_second: float) -> float:
        counted = min(samples, largest or samples)
        return plan.round_seconds(
            flops_per_second=flops_per_second,
            bytes_per_second=bytes_per_second,
            batches=settings.iterations_for(counted, counted),
            batch_size=settings.batch_size,
        )

    devices = planned.job.devices
    return median_high(seconds(d.samples, d.flops_per_second, d.bytes_per_second) for d in devices)
