"""The paper's numbers beside predictions: which are fitted, which only checked, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Literal

from fedoptima.paper_numbers import (
    NUMBERS,
    OTHERS,
    Measure,
    PaperNumber,
    Workload,
    named_in_throughput,
)
from tools.fit_fleet.figures import Figures

Use = Literal["fitted", "checked", "not comparable"]
IDLE = (Measure.SERVER_IDLE_REDUCTION, Measure.DEVICE_IDLE_REDUCTION)
Measured = Mapping[Workload, Mapping[str, Figures]]

BARRIER = ("fl", "splitfed", "pipar")  # their steps are the same, so are their epochs
WORKLOADS: dict[str, tuple[Workload, Workload]] = {
    "testbed_a": ("a_image", "a_text"),
    "testbed_b": ("b_image", "b_text"),
}


@dataclass(frozen=True, slots=True)
class Epochs:
    """Until a method has converged: our assumption, because the paper does not say."""

    fedoptima: float  # of samples that its server trained on
    barrier: float
    source: str


_CURVES = (
    "where our own curves pass 82.4 % (results/testbed_a_vgg5_cifar10: FedOptima after 77 device "
    "epochs, in which its server had trained on 41; FL and SplitFed after 78, PiPar after 91)"
)
_LIKE = "as on a_image, in the proportion of the recipes' budgets (60 to 150 epochs)"
EPOCHS: dict[Workload, Epochs] = {
    "a_image": Epochs(41, 82, _CURVES),
    "a_text": Epochs(16, 33, _LIKE),
    "b_image": Epochs(41, 82, "as on a_image"),
    "b_text": Epochs(16, 33, _LIKE),
}

_TRAINED = "an accuracy: takes training, not a dry run"
_NEVER = "whether an accuracy is reached takes training"
_WHY: dict[Measure, str] = {
    Measure.ACCURACY: _TRAINED,
    Measure.ACCURACY_GAIN: _TRAINED,
    Measure.DEVICES_IN_8_GB: "memory does not depend on speeds (docs/server-memory.md)",
    Measure.STARTUP_SECONDS: "start-up is not part of the virtual clock",
}


def use_of(number: PaperNumber) -> tuple[Use, str]:
    """What the fit makes of a number, and why."""
    if number.measure in _WHY:
        return "not comparable", _WHY[number.measure]
    if number.value is None:
        return "not comparable", _NEVER
    match number.measure:
        case Measure.HOURS:
            return "fitted", "epochs assumed, within a factor of 2"
        case Measure.TIME_RATIO if number.method in BARRIER:
            return "fitted", "to each other exactly, to FedOptima within a factor of 2"
        case Measure.TIME_RATIO:
            return "checked", "its epochs are its own and unknown; those of FL assumed"
        case Measure.THROUGHPUT_RATIO:
            return "fitted", ""
        case Measure.SERVER_IDLE_REDUCTION | Measure.DEVICE_IDLE_REDUCTION:
            return "fitted", "the larger of this testbed's two; the paper's is the largest of four"
        case Measure.RETENTION if number.workload == "b_text":
            return "not comparable", "not here: hours of 16 fast devices; `fedoptima reproduce`"
        case Measure.RETENTION:
            return "checked", "of useful samples, one seed"
        case _:
            return "checked", "bytes depend on the split and the method, hardly on speeds"


def predicted(number: PaperNumber, measured: Measured) -> float | None:
    """None: that takes more than the figures of the workloads that were measured."""
    if number.measure in IDLE:
        return max(_idle_reduction(number.measure, each) for each in measured.values())
    if number.workload not in measured or use_of(number)[0] == "not comparable":
        return None
    assert number.workload is not None
    of, epochs = measured[number.workload], EPOCHS[number.workload]
    reference = epochs.fedoptima * of["fedoptima"].epoch_seconds
    match number.measure:
        case Measure.HOURS:
            return reference / 3600
        case Measure.TIME_RATIO:
            return epochs.barrier * of[number.method].epoch_seconds / reference
        case Measure.THROUGHPUT_RATIO:
            return _speed(of, number) / of[number.against].samples_per_second
        case Measure.COMMUNICATION_CHANGE:
            return of[number.method].round_bytes / of[number.against].round_bytes - 1
    return None


def _speed(of: Mapping[str, Figures], number: PaperNumber) -> float:
    if number.method != OTHERS:
        return of[number.method].samples_per_second
    named = named_in_throughput(number.workload)
    return max(each.samples_per_second for method, each in of.items() if method not in named)


def _idle_reduction(measure: Measure, of: Mapping[str, Figures]) -> float:
    """Against the baseline with the least idle time; less than a thousandth of the time is that."""
    server = measure is Measure.SERVER_IDLE_REDUCTION
    idle = {
        method: max(each.server_idle if server else each.device_idle, each.epoch_seconds / 1000)
        for method, each in of.items()
    }
    own = idle.pop("fedoptima")
    return 1 - own / min(idle.values())


def residual(number: PaperNumber, prediction: float) -> float:
    """The logarithm of predicted over reported; 0 where a bound is kept."""
    assert number.value is not None
    match number.measure:
        case Measure.COMMUNICATION_CHANGE:
            return log((1 + prediction) / (1 + number.value))
        case Measure.SERVER_IDLE_REDUCTION | Measure.DEVICE_IDLE_REDUCTION:  # what is left of it
            return log((1 - prediction) / (1 - number.value))
    difference = log(prediction / number.value)
    return max(0.0, difference) if number.bound == "at most" else difference


# ---- what is minimised ---------------------------------------------------------------------------

RATIO = log(1.25)  # a ratio that is off by a quarter counts 1
# What takes an assumption counts 1 where it is off by a factor of 2: epochs to converge, and that
# the largest reduction of idle time of all four workloads is about that of this testbed.
ASSUMED = log(2)


def terms(measured: Measured, numbers: tuple[PaperNumber, ...] = NUMBERS) -> list[float]:
    """One for every fitted number, to be squared and added up.

    The times of the barrier methods share the epochs that we assume: what they have in common
    counts as an assumption does, what sets them apart as a ratio does.
    """
    found: list[float] = []
    for each in numbers:
        if each.measure in IDLE and (prediction := predicted(each, measured)) is not None:
            found.append(residual(each, prediction) / ASSUMED)
    for workload in measured:
        of_workload = [each for each in numbers if each.workload == workload]
        times: list[float] = []
        for each in of_workload:
            prediction = predicted(each, measured) if use_of(each)[0] == "fitted" else None
            if prediction is None:
                continue
            off = residual(each, prediction)
            if each.measure is Measure.TIME_RATIO:
                times.append(off)
            else:
                found.append(off / (ASSUMED if each.measure is Measure.HOURS else RATIO))
        if times:
            common = sum(times) / len(times)
            found.append(common / ASSUMED)
            found += [(off - common) / RATIO for off in times]
    return found
