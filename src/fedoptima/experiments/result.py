"""What a run came to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from fedoptima.analysis.curve import Point
from fedoptima.analysis.summary import Summary
from fedoptima.analysis.usage import Usage
from fedoptima.core.types import SERVER, NodeId


@dataclass(frozen=True)
class Result:
    """The figures are the trace's, in ``summary``; the usual ones can be had here by name."""

    name: str
    method: str
    seed: int
    reason: str  # why the run ended
    rounds: int
    events: int
    summary: Summary
    trace_digest: str
    weights_digest: str
    split: int  # blocks on the device
    directory: Path | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    # ---- the course --------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Of training, on the run's clock."""
        return self.summary.seconds

    @property
    def epochs(self) -> float:
        return self.summary.epochs

    @property
    def versions(self) -> int:
        """Merges."""
        return self.summary.versions

    @property
    def curve(self) -> tuple[Point, ...]:
        return self.summary.curve

    @property
    def accuracy(self) -> float | None:
        """Of the final weights; None in a dry run."""
        return self.curve[-1].accuracy if self.curve else None

    @property
    def best_accuracy(self) -> float | None:
        return max((p.accuracy for p in self.curve if p.accuracy is not None), default=None)

    def time_to(self, accuracy: float) -> float | None:
        """Seconds until the accuracy was first reached; None if it never was."""
        for point in self.curve:
            if point.accuracy is not None and point.accuracy >= accuracy:
                return point.seconds
        return None

    # ---- what it took ------------------------------------------------------------------------

    @property
    def usage(self) -> Mapping[NodeId, Usage]:
        """Busy and idle seconds of every node."""
        return self.summary.usage

    @property
    def server_utilisation(self) -> float:
        return self.usage[SERVER].utilisation

    @property
    def device_utilisation(self) -> float:
        """The mean over devices."""
        devices = [use for node, use in self.usage.items() if node != SERVER]
        return sum(use.utilisation for use in devices) / len(devices) if devices else 0.0

    @property
    def device_samples(self) -> int:
        return self.summary.device_samples

    @property
    def server_samples(self) -> int:
        return self.summary.server_samples

    @property
    def bytes_up(self) -> int:
        return self.summary.traffic.up.total

    @property
    def bytes_down(self) -> int:
        return self.summary.traffic.down.total

    @property
    def server_memory_peak(self) -> int:
        """Bytes of models, activations and waiting updates that the server held at once."""
        return int(self.summary.memory.total.peak)

    @property
    def refused(self) -> int:
        """Updates that came too late to be merged."""
        return self.summary.staleness.refused

    @property
    def refused_samples(self) -> int:
        """What those were trained on; in no epoch."""
        return self.summary.refused_samples

    @property
    def late_batches(self) -> int:
        """Activation batches that came after their credit had expired and found no free slot."""
        return self.summary.balance.late_batches

    # ---- what is left ------------------------------------------------------------------------

    def load_into(self, model: nn.Module) -> nn.Module:
        """The trained weights, both sides joined, in a plain model."""
        model.load_state_dict(dict(self.weights))
        return model

    def to_json(self) -> str:
        """Everything but the weights."""
        plain = {
            "name": self.name,
            "method": self.method,
            "seed": self.seed,
            "reason": self.reason,
            "accuracy": self.accuracy,
            "best_accuracy": self.best_accuracy,
            "rounds": self.rounds,
            "events": self.events,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "server_memory_peak": self.server_memory_peak,
            "refused": self.refused,
            "late_batches": self.late_batches,
            "trace_digest": self.trace_digest,
            "weights_digest": self.weights_digest,
            "split": self.split,
            "directory": str(self.directory) if self.directory else None,
            **self.summary.plain(),
        }
        return json.dumps(plain, indent=1)
