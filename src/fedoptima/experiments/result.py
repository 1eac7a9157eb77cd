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
from fedoptima.analysis.formatting import accuracies, busy, duration, megabytes, percent
from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.influence import warnings_of
from fedoptima.analysis.summary import Summary
from fedoptima.config.schema import Recipe
from fedoptima.core.plan import Plan
from fedoptima.core.types import SERVER, NodeId
from fedoptima.display.sheets import as_figure, as_frame, as_html, as_text
from fedoptima.trace.writer import Digest

if TYPE_CHECKING:  # it takes torch, and a dry run may do without
    from torch import Tensor, nn

LOG = logging.getLogger("fedoptima.run")

_IN_JSON = (
    *("name", "method", "seed", "reason", "accuracy", "test_accuracy", "best_accuracy", "rounds"),
    *("events", "bytes_up", "bytes_down", "server_memory_peak", "refused", "late_batches"),
    *("trace_digest", "weights_digest", "split", "split_after", "warnings"),
)


@dataclass(frozen=True, repr=False)
class Result:
    """What came out of a run. It prints as a short table, and a notebook shows its curve, too.

    The figures are the trace's, in `summary`; the common ones are also attributes here.

    Example:
        ```python
        print(result)  # a short table
        result.to_pandas()  # every evaluation
        result.plot()  # the curve, as a plotly figure
        result.load_into(model)  # the trained weights
        ```
    """

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
    split_after: str = ""  # the last of them, after which the model is cut; empty: nothing is
    test_accuracy: float | None = None  # where validation data was held out of the training data
    directory: Path | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    # ---- the course --------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds of training, on the run's clock."""
        return self.summary.seconds

    @property
    def epochs(self) -> float:
        return self.summary.epochs

    @property
    def versions(self) -> int:
        """Versions of the global model: the number of merges."""
        return self.summary.versions

    @property
    def curve(self) -> tuple[Point, ...]:
        return self.summary.curve

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the final weights on the validation data; None in a dry run."""
        return self.curve[-1].accuracy if self.curve else None

    @property
    def best_accuracy(self) -> float | None:
        return max((p.accuracy for p in self.curve if p.accuracy is not None), default=None)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the final weights on the validation data, by name; empty in a dry run."""
        return self.curve[-1].metrics if self.curve else {}

    @property
    def device_metrics(self) -> Mapping[NodeId, Mapping[str, float]]:
        """Metrics of the final weights on each device's held-out data, `data.device_validation`."""
        return self.curve[-1].devices if self.curve else {}

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
        """Busy share of the time of all devices together, as in report, page and metrics."""
        return self.summary.device_usage.utilisation

    @property
    def device_samples(self) -> int:
        return self.summary.device_samples

    @property
    def server_samples(self) -> int:
        return self.summary.server_samples

    @property
    def useful_samples(self) -> float:
        """Samples that went through the whole network and were used."""
        return self.summary.work.useful

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
        """Updates that were too late to be merged, or trained on a model that a restart undid."""
        return self.summary.staleness.refused

    @property
    def refused_samples(self) -> int:
        """Samples that the refused updates were trained on; they count towards no epoch."""
        return self.summary.refused_samples

    @property
    def late_batches(self) -> int:
        """Activation batches that arrived after their credit had expired and found no free slot."""
        return self.summary.balance.late_batches

    @property
    def warnings(self) -> tuple[str, ...]:
        """Devices with a problem, or whose shares of the merges and of the data differ a lot."""
        return tuple(warnings_of(self.summary, self.method))

    # ---- as it is shown ----------------------------------------------------------------------

    def __str__(self) -> str:
        return as_text(self._title, self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """In a notebook: the table, and the curve below it."""
        value, curve = self._curve()
        return as_html(self._title, self._rows(), {self.method: curve}, value)

    def plot(self) -> Any:
        """The accuracy over time, or the loss where there is no accuracy.

        Returns:
            A `plotly.graph_objects.Figure`.

        Raises:
            ConfigError: plotly is missing; the message says how to install it.
        """
        value, curve = self._curve()
        return as_figure(self._title, {self.method: curve}, value)

    def to_pandas(self) -> Any:
        """Every evaluation of the run.

        Returns:
            A `pandas.DataFrame` with one row for each point of `curve`.

        Raises:
            ConfigError: pandas is missing.
        """
        names = [f.name for f in fields(Point)]
        return as_frame(names, [[getattr(p, name) for name in names] for p in self.curve])

    @property
    def _title(self) -> str:
        return f"{self.name}: {self.method}, seed {self.seed} - {self.reason}"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("accuracy", accuracies(self.accuracy, self.best_accuracy)),
            ("test accuracy", percent(self.test_accuracy)),
            ("figures", self.curve[-1].in_words if self.curve else ""),
            ("time", f"{duration(self.seconds)}, {self.epochs:.1f} epochs, {self.rounds} rounds"),
            ("split", f"after {self.split_after} (block {self.split})"),
            (
                "busy",
                f"server {busy(self.server_utilisation, self.usage[SERVER].reused_share)}, "
                f"devices {percent(self.device_utilisation)}",
            ),
            ("traffic", f"{megabytes(self.bytes_up)} up, {megabytes(self.bytes_down)} down"),
            ("folder", str(self.directory)),
        ]
        there = {
            "accuracy": self.accuracy is not None,
            "test accuracy": self.test_accuracy is not None,
            "split": bool(self.split_after),
            "folder": self.directory is not None,
        }
        return [(name, text) for name, text in rows if text and there.get(name, True)]

    def _curve(self) -> tuple[str, list[tuple[float, float]]]:
        """What is drawn, and it over seconds."""
        accuracy = [(p.seconds, 100 * p.accuracy) for p in self.curve if p.accuracy is not None]
        if accuracy:
            return "accuracy, %", accuracy
        return "loss", [(p.seconds, p.loss) for p in self.curve if p.loss is not None]

    # ---- what is left ------------------------------------------------------------------------

    def load_into(self, model: nn.Module) -> nn.Module:
        """The trained weights, both sides joined, in a plain model.

        Args:
            model: As the one that was trained; its weights are replaced.

        Returns:
            The same model.
        """
        model.load_state_dict(dict(self.weights))
        return model

    def to_json(self) -> str:
        """Everything but the weights, as JSON."""
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
    warn: bool = True,
) -> Result:
    """The result of a run that has just ended."""
    recipe, weights = setup.recipe, engine.export()
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
        split_after=_cut_block(engine.plan),
        test_accuracy=setup.test_accuracy(weights) if weights else None,
        directory=directory,
        weights=weights,
    )
    for warning in result.warnings if warn else ():
        LOG.warning(warning)
    return result


def _cut_block(plan: Plan | None) -> str:
    cut = plan is not None and plan.server_blocks
    return plan.blocks[plan.split - 1].name if plan is not None and cut else ""


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
