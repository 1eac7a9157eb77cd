"""The result of a run."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedoptima.analysis.curve import Point
from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.influence import influence_warnings
from fedoptima.analysis.summary import Summary
from fedoptima.config.schema import Recipe
from fedoptima.core.plan import Plan
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.writer import Digest

if TYPE_CHECKING:  # it takes torch, and a dry run may do without
    from torch import Tensor, nn

LOG = logging.getLogger("fedoptima.run")

_IN_JSON = (
    *("name", "method", "seed", "reason", "accuracy", "test_accuracy", "best_accuracy", "rounds"),
    *("events", "bytes_up", "bytes_down", "server_memory_peak", "refused", "late_batches"),
    *("trace_digest", "weights_digest", "split", "warnings"),
)


@dataclass(frozen=True)
class Result:
    """The figures are the trace's, in ``summary``; the common ones are also attributes here."""

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
    test_accuracy: float | None = None  # where validation data was held out of the training data
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
        """Of the final weights on the validation data; None in a dry run."""
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
        """Samples that the refused updates were trained on; they count towards no epoch."""
        return self.summary.refused_samples

    @property
    def late_batches(self) -> int:
        """Activation batches that came after their credit had expired and found no free slot."""
        return self.summary.balance.late_batches

    @property
    def warnings(self) -> tuple[str, ...]:
        """Devices whose part of the merges and of the data differ a lot, and the way out."""
        return tuple(influence_warnings(self.summary.balance, self.method))

    # ---- what is left ------------------------------------------------------------------------

    def load_into(self, model: nn.Module) -> nn.Module:
        """The trained weights, both sides joined, in a plain model."""
        model.load_state_dict(dict(self.weights))
        return model

    def to_json(self) -> str:
        """Everything but the weights."""
        plain = {
            **{name: getattr(self, name) for name in _IN_JSON},
            "directory": str(self.directory) if self.directory else None,
            **self.summary.plain(),
        }
        return json.dumps(plain, indent=1)

    @classmethod
    def from_plain(
        cls,
        plain: Mapping[str, Any],
        summary: Summary,
        directory: Path,
        weights: Mapping[str, Tensor],
    ) -> Result:
        """From what `to_json` has written; ``summary`` is what else is in a run's folder."""
        own = (f for f in fields(cls) if f.name not in ("summary", "directory", "weights"))
        known = {f.name: plain[f.name] for f in own if f.name in plain or f.default is MISSING}
        return cls(**known, summary=summary, directory=directory, weights=weights)


class Ended(Protocol):
    """What a run was set up from."""

    @property
    def recipe(self) -> Recipe: ...
    def test_accuracy(self, weights: Mapping[str, Tensor]) -> float | None:
        """Where validation data was held out of the training data."""


class LastState(Protocol):
    """Of the server's engine."""

    @property
    def plan(self) -> Plan | None: ...
    def export(self) -> Mapping[str, Tensor]:
        """The trained weights; none of a dry run."""


def build_result(
    setup: Ended,
    engine: LastState,
    trace: Digest,
    *,
    reason: str,
    rounds: int,
    summary: Summary,
    directory: Path | None,
) -> Result:
    """The result of a run that has just ended."""
    recipe = setup.recipe
    weights = engine.export()
    result = Result(
        name=recipe.name,
        method=recipe.method.name,
        seed=recipe.seed,
        reason=reason,
        rounds=rounds,
        events=trace.records,
        summary=summary,
        trace_digest=trace.hexdigest(),
        weights_digest=weights_digest(weights),
        split=engine.plan.split if engine.plan else 0,
        test_accuracy=setup.test_accuracy(weights) if weights else None,
        directory=directory,
        weights=weights,
    )
    for warning in result.warnings:
        LOG.warning(warning)
    return result


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """A fingerprint of the weights, bit for bit."""
    digest = hashlib.sha256()
    if not weights:
        return digest.hexdigest()
    import torch

    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
