"""The paper's number beside ours: does it agree, and where not, why?

Reasons are in a small file, ``reasons.toml``. Each names what shows it: a test, or a command.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean, stdev

from fedoptima.analysis.formatting import brief
from fedoptima.config.fleet import Strict
from fedoptima.config.load import read_toml, validate
from fedoptima.core.errors import ConfigError
from fedoptima.paper_numbers import NUMBERS, Measure, PaperNumber
from fedoptima.reproduction.ours import Results, Value, beside, figure_of, ours

REASONS = "reasons.toml"
FITTED = "_fitted"  # what workloads on the fleet that is fitted to the paper end with
POINTS = 0.01  # accuracies that differ by less agree
SHARE = 0.2  # other numbers that differ by less than this share agree
GAIN_SHARE = 0.5  # gains in accuracy, which are small beside what seeds differ by
_SHARES = (
    Measure.SERVER_IDLE_REDUCTION,
    Measure.DEVICE_IDLE_REDUCTION,
    Measure.COMMUNICATION_CHANGE,
)
_MORE_IS_BETTER = (
    Measure.ACCURACY,
    Measure.ACCURACY_GAIN,
    Measure.SERVER_IDLE_REDUCTION,
    Measure.DEVICE_IDLE_REDUCTION,
    Measure.RETENTION,
)


class Verdict(StrEnum):
    AGREES = "agrees"
    BETTER = "better"  # for FedOptima than in the paper
    DIFFERS = "differs"
    OPEN = "open"  # "never" in the paper and here, of a method whose settings are not tuned
    NOT_RUN = "not run"


class Reason(Strict):
    numbers: tuple[str, ...]  # their keys
    text: str
    shown_by: str  # "tests/...::test", or a command


class _Reasons(Strict):
    reason: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Row:
    stated: PaperNumber
    values: Sequence[Value]  # by seed
    reason: Reason | None = None
    fitted: Sequence[Value] = ()  # on the fleet that is fitted to the paper
    beside: str = ""  # what else belongs to it
    tuned: bool = True  # each method of the workload has settings chosen for it

    @property
    def figure(self) -> str:
        return figure_of(self.stated)

    @property
    def verdict(self) -> Verdict:
        found = verdict_of(self.stated, self.values)
        never = found is Verdict.AGREES and self.stated.value is None
        return Verdict.OPEN if never and not self.tuned else found

    @property
    def paper(self) -> str:
        stated = self.stated
        bound = f"{stated.bound} " if stated.bound else ""
        return f"{bound}{shown(stated.measure, stated.value)}"

    @property
    def ours(self) -> str:
        return _with_spread(self.stated.measure, self.values)

    @property
    def ours_fitted(self) -> str:
        return _with_spread(self.stated.measure, self.fitted)


def _with_spread(measure: Measure, values: Sequence[Value]) -> str:
    reached = [value for value in values if value is not None]
    if not values:
        return "-"
    if not reached:
        return "never"
    text = shown(measure, fmean(reached))
    if len(reached) > 1 and stdev(reached) > 0:
        text += f" ± {shown(measure, stdev(reached)).lstrip('+')}"
    return text if len(reached) == len(values) else f"{text} ({len(reached)} of {len(values)})"


def rows(
    results: Results, reasons: Mapping[str, Reason], untuned: Collection[str] = ()
) -> list[Row]:
    """One for each number that the paper states, in its order; ``untuned``: workloads."""
    fitted = replace(results, fleet=FITTED)
    return [
        Row(
            each,
            ours(each, results),
            reasons.get(each.key),
            ours(each, fitted),
            beside(each, results),
            each.workload not in untuned,
        )
        for each in NUMBERS
    ]


def verdict_of(stated: PaperNumber, values: Sequence[Value]) -> Verdict:
    if not values:
        return Verdict.NOT_RUN
    reached = [value for value in values if value is not None]
    if stated.value is None or len(reached) < len(values):
        same = not reached and stated.value is None
        return Verdict.AGREES if same else Verdict.DIFFERS
    mine, paper = fmean(reached), stated.value
    share = GAIN_SHARE if stated.measure is Measure.ACCURACY_GAIN else SHARE
    near = POINTS if stated.measure is Measure.ACCURACY else share * abs(paper)
    if abs(mine - paper) <= near or (stated.bound == "at most" and mine <= paper):
        return Verdict.AGREES
    if stated.bound == "at least" and mine >= paper:
        return Verdict.AGREES
    own = stated.method == "fedoptima"
    loose = stated.bound in ("", "about")
    if own and stated.measure in _MORE_IS_BETTER and mine > paper and loose:
        return Verdict.BETTER
    # Not hours: how long it takes on devices whose speeds are guessed is no merit.
    less = stated.measure is Measure.COMMUNICATION_CHANGE
    return Verdict.BETTER if own and less and mine < paper else Verdict.DIFFERS


def shown(measure: Measure, value: Value) -> str:
    if value is None:
        return "never"
    match measure:
        case Measure.ACCURACY | Measure.ACCURACY_GAIN:
            return f"{100 * value:.1f} %"
        case Measure.HOURS:
            return f"{value:.2f} h"
        case Measure.TIME_RATIO:
            return f"{brief(value)}x"
        case Measure.STARTUP_SECONDS:
            return f"{brief(value)} s"
        case Measure.DEVICES_IN_8_GB:
            return f"{value:,.0f}"
    if measure in _SHARES:
        return (
            f"{100 * value:+.1f} %"
            if measure is Measure.COMMUNICATION_CHANGE
            else f"{100 * value:.1f} %"
        )
    return f"{value:.2f}"


def read_reasons(folder: Path) -> dict[str, Reason]:
    """By the key of the number; none if there is no such file."""
    path = folder / REASONS
    if not path.is_file():
        return {}
    found: dict[str, Reason] = {}
    keys = {each.key for each in NUMBERS}
    for reason in validate(_Reasons, read_toml(path), str(path)).reason:
        for key in reason.numbers:
            if key not in keys:
                raise ConfigError(f"{path}: {key}: is no number of the paper")
            found[key] = reason
    return found
