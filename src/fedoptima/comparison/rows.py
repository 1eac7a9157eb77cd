"""From the runs of a comparison to one row per method, or per method and settings in a sweep.

Everything here is computed from the runs' summaries. Figures of several seeds are given as mean and
standard deviation over the seeds that were finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

from fedoptima.comparison.cases import Case
from fedoptima.comparison.spec import REFERENCE, About
from fedoptima.core.types import SERVER

TARGET_SHARE = 0.99  # of the reference's best accuracy: the target, if none is given


@dataclass(frozen=True)
class Figures:
    """Of a run, or the mean or deviation of several. Device figures are means over devices."""

    accuracy: float | None  # of the final weights; None in a dry run
    best_accuracy: float | None
    seconds: float  # on the run's clock
    epochs: float
    server_idle: float  # seconds per epoch; a server waits for devices' work only, so all Type I
    device_idle_1: float
    device_idle_2: float
    device_throughput: float  # samples per second
    server_throughput: float
    bytes_up: float  # per epoch
    bytes_down: float
    server_memory: float  # bytes at the peak
    # Samples per second through the whole network that were used; None: of an older fedoptima.
    useful_throughput: float | None = None
    server_idle_share: float | None = None  # of its time
    device_idle_1_share: float | None = None
    device_idle_2_share: float | None = None
    server_reused_share: float | None = None  # of its time, on batches that it trained on before
    reused_throughput: float | None = None  # samples per second, on the server
    test_accuracy: float | None = None  # where validation data was held out of the training data
    loss: float | None = None  # of the final weights
    best_loss: float | None = None


@dataclass(frozen=True)
class Moment:
    """One evaluation."""

    seconds: float
    epochs: float
    accuracy: float | None
    loss: float | None = None


@dataclass(frozen=True)
class Run:
    method: str
    seed: int
    error: str | None = None  # why it has no figures
    figures: Figures | None = None
    curve: tuple[Moment, ...] = ()
    trace_digest: str = ""
    weights_digest: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)  # of those varied

    @cached_property
    def label(self) -> str:
        """Of its row."""
        return Case(self.method, tuple(self.settings.items())).label

    def time_to(self, accuracy: float) -> float | None:
        """Seconds until the accuracy was first reached; None if it never was."""
        reached = (p.seconds for p in self.curve if p.accuracy and p.accuracy >= accuracy)
        return next(reached, None)


@dataclass(frozen=True)
class Row:
    """One method with one choice of settings, over its seeds."""

    method: str
    settings: Mapping[str, object]
    seeds: tuple[int, ...]  # those that were finished
    errors: Mapping[int, str]  # those that were not
    mean: Figures | None  # None: no seed was finished
    deviation: Figures | None  # None: fewer than two seeds were finished
    reached: int  # seeds that reached the target
    time_to_target: float | None  # seconds, the mean over those seeds
    time_deviation: float | None
    ratio: float | None  # of that time to the reference's; None: not every seed of both reached it


@dataclass(frozen=True)
class ComparedRuns:
    """All runs, and one row per case."""

    about: About
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return self.about.recipe.name

    @property
    def failed(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.error is not None)

    @cached_property
    def target(self) -> float | None:
        """The accuracy to reach. None in a dry run, of a task without accuracy, and in a sweep
        unless given: what the best accuracy is depends on the settings."""
        if self.shows_loss:
            return None
        if self.about.target is not None or self.about.vary:
            return self.about.target
        best = self._best_accuracies()
        return TARGET_SHARE * best[self._target_method(best)] if best else None

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._row(case) for case in self.about.cases)

    @cached_property
    def shows_loss(self) -> bool:
        """The task has no accuracy: the loss says how good the models are."""
        known = [run.figures for run in self.runs if run.figures is not None]
        return any(f.loss is not None for f in known) and all(f.accuracy is None for f in known)

    @cached_property
    def reference(self) -> str | None:
        """The method that others' times are compared with: FedOptima, or else the fastest."""
        if self.about.vary:
            return None
        times = {
            method: fmean(times) for method in self.about.methods if (times := self._times(method))
        }
        return REFERENCE if REFERENCE in times else min(times, key=times.__getitem__, default=None)

    def explain_target(self) -> str | None:
        if self.target is None:
            return None
        origin = "given"
        if self.about.target is None:
            chosen = self._target_method(self._best_accuracies())
            origin = f"{100 * TARGET_SHARE:.0f} % of the best accuracy of {chosen}"
        return f"{100 * self.target:.2f} % ({origin})"

    def runs_of(self, label: str) -> Sequence[Run]:
        """Of a row, by its label: in a comparison that is the method."""
        return self._by_label.get(label, ())

    def failures(self) -> list[str]:
        """One line per error, with all runs that ended with it."""
        by_error: dict[str, list[str]] = {}
        for run in self.failed:
            by_error.setdefault(run.error or "", []).append(f"{run.label} (seed {run.seed})")
        return [f"{', '.join(runs)}: {error}" for error, runs in by_error.items()]

    # ---- from runs to rows -------------------------------------------------------------------

    @cached_property
    def _by_label(self) -> Mapping[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.label, []).append(run)
        return found

    def _figures(self, label: str) -> list[Figures]:
        return [run.figures for run in self.runs_of(label) if run.figures]

    def _best_accuracies(self) -> dict[str, float]:
        means = {
            m: _over(fmean, figures) for m in self.about.methods if (figures := self._figures(m))
        }
        return {m: mean.best_accuracy for m, mean in means.items() if mean.best_accuracy}

    @staticmethod
    def _target_method(best: Mapping[str, float]) -> str:
        return REFERENCE if REFERENCE in best else max(best, key=best.__getitem__)

    def _times(self, label: str) -> list[float] | None:
        """Times to the target of every finished seed; None if one of them never reached it."""
        finished = self._figures(label)
        times = self._reached(label)
        return times if times and len(times) == len(finished) else None

    def _reached(self, label: str) -> list[float]:
        if self.target is None:
            return []
        times = (run.time_to(self.target) for run in self.runs_of(label))
        return [time for time in times if time is not None]

    def _row(self, case: Case) -> Row:
        label = case.label
        figures, reached, times = self._figures(label), self._reached(label), self._times(label)
        reference = self._times(self.reference) if self.reference else None
        runs = self.runs_of(label)
        return Row(
            method=case.method,
            settings=dict(case.settings),
            seeds=tuple(run.seed for run in runs if run.figures),
            errors={run.seed: run.error for run in runs if run.error is not None},
            mean=_over(fmean, figures) if figures else None,
            deviation=_over(stdev, figures) if len(figures) > 1 else None,
            reached=len(reached),
            time_to_target=fmean(reached) if reached else None,
            time_deviation=stdev(reached) if len(reached) > 1 else None,
            ratio=fmean(times) / fmean(reference) if times and reference else None,
        )


def read_run(case: Case, seed: int, summary: Mapping[str, Any]) -> Run:
    """From a run's summary.json."""
    usage = (summary["usage"][SERVER], summary["device_usage"])
    server, devices = (use["per_epoch"] for use in usage)
    traffic, throughput, curve = summary["traffic"], summary["throughput"], summary["curve"]
    losses = [point["loss"] for point in curve if point["loss"] is not None]
    figures = Figures(
        accuracy=summary["accuracy"],
        best_accuracy=summary["best_accuracy"],
        seconds=summary["seconds"],
        epochs=summary["epochs"],
        server_idle=server["idle_1"] + server["idle_2"],
        device_idle_1=devices["idle_1"],
        device_idle_2=devices["idle_2"],
        device_throughput=throughput["device"],
        server_throughput=throughput["server"],
        bytes_up=traffic["up"]["per_epoch"]["total"],
        bytes_down=traffic["down"]["per_epoch"]["total"],
        server_memory=summary["server_memory_peak"],
        useful_throughput=throughput.get("useful"),
        server_idle_share=usage[0]["idle_1_share"] + usage[0]["idle_2_share"],
        device_idle_1_share=usage[1]["idle_1_share"],
        device_idle_2_share=usage[1]["idle_2_share"],
        server_reused_share=usage[0].get("reused_share"),
        reused_throughput=throughput.get("reused"),
        test_accuracy=summary.get("test_accuracy"),
        loss=losses[-1] if losses else None,
        best_loss=min(losses, default=None),
    )
    return Run(
        case.method,
        seed,
        settings=dict(case.settings),
        figures=figures,
        curve=tuple(Moment(p["seconds"], p["epochs"], p["accuracy"], p["loss"]) for p in curve),
        trace_digest=summary["trace_digest"],
        weights_digest=summary["weights_digest"],
    )


def _over(statistic: Callable[[Sequence[float]], float], figures: Sequence[Figures]) -> Figures:
    """The mean or deviation of each figure; None where a run has none."""
    values: dict[str, Any] = {}
    for name in (figure.name for figure in fields(Figures)):
        column = [getattr(each, name) for each in figures]
        values[name] = None if None in column else statistic(column)
    return Figures(**values)
