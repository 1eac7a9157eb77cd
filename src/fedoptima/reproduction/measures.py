"""What is drawn of a run: a sum of its figures, in a unit for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedoptima.reproduction.records import Record


@dataclass(frozen=True)
class Measure:
    title: str
    unit: str
    figures: tuple[str, ...]  # their names; added up
    scale: float = 1.0

    def of(self, record: Record) -> float | None:
        """None: the run has no such figure."""
        found = [record.figures.get(name) for name in self.figures]
        return None if None in found else self.scale * sum(v for v in found if v is not None)


MEASURES: Mapping[str, Measure] = {
    "best_accuracy": Measure("Best accuracy", "%", ("best_accuracy",), 100.0),
    "server_idle": Measure("Idle server", "s/epoch", ("server_idle",)),
    "device_idle": Measure("Idle devices, mean", "s/epoch", ("device_idle_1", "device_idle_2")),
    "server_idle_share": Measure("Idle server", "% of its time", ("server_idle_share",), 100.0),
    "device_idle_share": Measure(
        "Idle devices, mean",
        "% of their time",
        ("device_idle_1_share", "device_idle_2_share"),
        100.0,
    ),
    "useful_throughput": Measure("Useful samples", "samples/s", ("useful_throughput",)),
    "device_throughput": Measure("Samples on devices", "samples/s", ("device_throughput",)),
    "server_throughput": Measure("Samples on the server", "samples/s", ("server_throughput",)),
    "traffic": Measure("Traffic, up and down", "MB/epoch", ("bytes_up", "bytes_down"), 1e-6),
    "memory": Measure("Server memory at its peak", "MiB", ("server_memory",), 2.0**-20),
    "startup": Measure("Pre-processor", "s of computing", ("startup",)),
}
