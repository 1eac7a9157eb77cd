"""Retention: how much of a method's throughput is left when devices come and go.

``R(p) = T(p) / T(0)`` (paper, section 6.4): T is samples per second, p the probability with which a
device leaves; T(0) is measured with the same varying bandwidth. Each seed is compared with itself,
because it determines the bandwidths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Final

from fedoptima.comparison.cases import Case
from fedoptima.comparison.rows import ComparedRuns, Figures, Row, Run

LEAVING: Final = "fleet.churn.leave_probability"
KINDS: Final = {"useful": "useful_throughput", "device": "device_throughput"}


@dataclass(frozen=True)
class Retained:
    """R(p) of one kind of samples, over the seeds."""

    mean: float
    deviation: float | None  # None: fewer than two seeds


def measures_retention(compared: ComparedRuns) -> bool:
    values = compared.about.vary.get(LEAVING, ())
    return any(value == 0 for value in values) and len(values) > 1


def retention_of(compared: ComparedRuns, row: Row) -> Mapping[str, Retained | None]:
    """Of useful and of device samples; None: a run is missing, or trained nothing at p = 0."""
    case = Case(row.method, tuple(row.settings.items()))
    by_seed = [retention_of_run(compared, run) for run in compared.runs_of(case.label)]
    found: dict[str, Retained | None] = {}
    for kind in KINDS:
        values = [value for each in by_seed if (value := each[kind]) is not None]
        spread = stdev(values) if len(values) > 1 else None
        found[kind] = Retained(fmean(values), spread) if values else None
    return found


def retention_of_run(compared: ComparedRuns, run: Run) -> Mapping[str, float | None]:
    """Against the run of the same seed and settings at p = 0."""
    at_rest = _stable(compared, run)
    return {kind: _ratio(run.figures, at_rest, name) for kind, name in KINDS.items()}


def _stable(compared: ComparedRuns, run: Run) -> Figures | None:
    zeros = (value for value in compared.about.vary[LEAVING] if value == 0)
    for zero in zeros:  # 0 or 0.0, as it was written
        settings = {**run.settings, LEAVING: zero}
        for other in compared.runs_of(replace(run, settings=settings).label):
            if other.seed == run.seed:
                return other.figures
    return None


def _ratio(figures: Figures | None, at_rest: Figures | None, name: str) -> float | None:
    if figures is None or at_rest is None:
        return None
    speed, whole = getattr(figures, name), getattr(at_rest, name)
    return speed / whole if speed is not None and whole else None
