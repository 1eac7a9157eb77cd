"""What a run came to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor, nn

from fedoptima.core.types import SERVER, NodeId
from fedoptima.report.curve import Point
from fedoptima.report.usage import Usage


@dataclass(frozen=True)
class Result:
    name: str
    method: str
    seed: int
    reason: str  # why the run ended
    seconds: float  # of training, on the run's clock
    epochs: float
    rounds: int
    versions: int  # merges
    events: int
    device_samples: int
    server_samples: int
    bytes_up: int
    bytes_down: int
    refused: int  # updates that came too late to be merged
    late_batches: int  # activation batches that came after their credit had expired
    curve: tuple[Point, ...]
    usage: Mapping[NodeId, Usage]  # busy and idle seconds of every node
    trace_digest: str
    weights_digest: str
    split: int  # blocks on the device
    directory: Path | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def accuracy(self) -> float | None:
        """Of the final weights; None in a dry run."""
        return self.curve[-1].accuracy if self.curve else None

    @property
    def best_accuracy(self) -> float | None:
        return max((p.accuracy for p in self.curve if p.accuracy is not None), default=None)

    @property
    def server_utilisation(self) -> float:
        return self.usage[SERVER].utilisation

    @property
    def device_utilisation(self) -> float:
        """The mean over devices."""
        devices = [use for node, use in self.usage.items() if node != SERVER]
        return sum(use.utilisation for use in devices) / len(devices) if devices else 0.0

    def time_to(self, accuracy: float) -> float | None:
        """Seconds until the accuracy was first reached; None if it never was."""
        for point in self.curve:
            if point.accuracy is not None and point.accuracy >= accuracy:
                return point.seconds
        return None

    def load_into(self, model: nn.Module) -> nn.Module:
        """The trained weights, both sides joined, in a plain model."""
        model.load_state_dict(dict(self.weights))
        return model

    def to_json(self) -> str:
        """Everything but the weights."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain.pop("weights")
        plain["directory"] = str(self.directory) if self.directory else None
        plain["curve"] = [asdict(point) for point in self.curve]
        plain["usage"] = {
            node: {**asdict(use), "utilisation": use.utilisation}
            for node, use in self.usage.items()
        }
        plain["accuracy"] = self.accuracy
        plain["best_accuracy"] = self.best_accuracy
        return json.dumps(plain, indent=1)
