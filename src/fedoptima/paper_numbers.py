"""Every result that the paper states as a number, with its place: the only copy in this repository.

Figures are not read off: the paper's text gives these numbers, its plots give no others. Shares and
accuracies are between 0 and 1. "5.4x more time" is a ratio of times here, because the abstract sums
the same numbers up as an acceleration of "1.9x to 21.8x".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Workload = Literal["a_image", "b_image", "a_text", "b_text"]
Bound = Literal["", "about", "at most", "at least"]

RECIPES: dict[Workload, str] = {  # the recipe of each, in recipes/
    "a_image": "testbed_a_vgg5_cifar10",
    "b_image": "testbed_b_mobilenet_tinyimagenet",
    "a_text": "testbed_a_transformer6_sst2",
    "b_text": "testbed_b_transformer12_imdb",
}
OTHERS = "others"  # the best of all baselines that are not named
VARIANTS = ("the best auxiliary variant", "the FIFO scheduler")  # of FedOptima itself


class Measure(StrEnum):
    ACCURACY = "accuracy"
    ACCURACY_GAIN = "accuracy gain"  # over `against`
    HOURS = "hours"  # until it has converged
    TIME_RATIO = "time ratio"  # hours over those of `against`
    THROUGHPUT_RATIO = "throughput ratio"  # over that of `against`
    SERVER_IDLE_REDUCTION = "server idle reduction"  # share of that of `against`
    DEVICE_IDLE_REDUCTION = "device idle reduction"
    RETENTION = "retention"  # R(0.5)
    COMMUNICATION_CHANGE = "communication change"  # bytes a round, as a share of `against`
    DEVICES_IN_8_GB = "devices in 8 GB"  # of the server's memory
    STARTUP_SECONDS = "start-up seconds"


@dataclass(frozen=True, slots=True)
class PaperNumber:
    key: str  # stored results refer to it
    workload: Workload | None  # None: of all four together
    measure: Measure
    method: str
    value: float | None  # None: "never", the method does not reach that accuracy
    place: str
    against: str = ""
    bound: Bound = ""
    note: str = ""


_M = Measure
_SEC_2 = "Sec. 2.2"
_TIME_IMAGE, _TIME_TEXT = "Sec. 6.1, Fig. 6", "Sec. 6.1, Fig. 7"
_SPEED_IMAGE, _SPEED_TEXT = "Sec. 6.3, Fig. 10", "Sec. 6.3, Fig. 11"
_UNSTABLE = "Sec. 6.4, Fig. 13"
_BEST_IDLE = "the largest of four workloads, against the baseline with the least idle time in each"
_WHOSE = (
    'the text says "FedAsync", but names PiPar as the baseline of this task two paragraphs before'
)


def _accuracy(key: str, workload: Workload, method: str, value: float, place: str) -> PaperNumber:
    return PaperNumber(key, workload, _M.ACCURACY, method, value, place)


def _times(workload: Workload, place: str, **ratios: float | None) -> tuple[PaperNumber, ...]:
    """To a similar accuracy as FedOptima's, as multiples of its time."""
    return tuple(
        PaperNumber(
            f"{workload}.time.{method}", workload, _M.TIME_RATIO, method, value, place, "fedoptima"
        )
        for method, value in ratios.items()
    )


def _fedoptima(
    workload: Workload, place: str, accuracy: float, hours: float | None
) -> tuple[PaperNumber, ...]:
    found = (_accuracy(f"{workload}.accuracy.fedoptima", workload, "fedoptima", accuracy, place),)
    if hours is None:
        return found
    key = f"{workload}.hours.fedoptima"
    return (*found, PaperNumber(key, workload, _M.HOURS, "fedoptima", hours, place))


def _throughput(
    workload: Workload, method: str, value: float, place: str, *, inverse: bool = False
) -> tuple[PaperNumber, PaperNumber]:
    """The best baseline's; all the others' are not above it. ``inverse``: FedOptima's over it."""
    key, measure = f"{workload}.throughput", _M.THROUGHPUT_RATIO
    whose, against = ("fedoptima", method) if inverse else (method, "fedoptima")
    most = round(1 / value, 3) if inverse else value
    return (
        PaperNumber(f"{key}.{method}", workload, measure, whose, value, place, against),
        PaperNumber(
            *(f"{key}.{OTHERS}", workload, measure, OTHERS, most, place, "fedoptima", "at most"),
            f"{method} is the best baseline there (Sec. 6.3 and 6.4)",
        ),
    )


NUMBERS: tuple[PaperNumber, ...] = (
    # ---- motivation: MobileNetV3-Large on Testbed B ------------------------------------------
    PaperNumber(
        "b_image.communication.oafl",
        *("b_image", _M.COMMUNICATION_CHANGE, "oafl", 0.24, f"{_SEC_2}, Fig. 2", "splitfed"),
        note='the text says "OFL", of which there are two: SplitFed and PiPar send the same',
    ),
    PaperNumber(
        "b_image.communication.fedoptima",
        *("b_image", _M.COMMUNICATION_CHANGE, "fedoptima", -0.59, f"{_SEC_2}, Fig. 2", "oafl"),
    ),
    PaperNumber(
        "b_image.memory.oafl",
        *("b_image", _M.DEVICES_IN_8_GB, "oafl", 26, f"{_SEC_2}, Fig. 3", "", "at most"),
    ),
    _accuracy("b_image.homogeneous.oafl", "b_image", "oafl", 0.24025, "Table 2"),
    _accuracy("b_image.heterogeneous.oafl", "b_image", "oafl", 0.2002, "Table 2"),
    _accuracy("b_image.homogeneous.fedoptima", "b_image", "fedoptima", 0.3975, "Table 2"),
    _accuracy("b_image.heterogeneous.fedoptima", "b_image", "fedoptima", 0.4005, "Table 2"),
    PaperNumber(
        *("startup.fedoptima", None, _M.STARTUP_SECONDS, "fedoptima", 5, "Sec. 3.2"),
        bound="at most",
        note="ours is the Pre-processor's computing time alone, the longest of four workloads; "
        "what devices take to measure their speeds and links is not in it",
    ),
    # ---- 6.1 training efficiency -------------------------------------------------------------
    *_fedoptima("a_image", _TIME_IMAGE, 0.824, 2.95),
    *_times("a_image", _TIME_IMAGE, splitfed=5.4, pipar=4.3, fedbuff=2.6, fl=11.7),
    *_times("a_image", _TIME_IMAGE, fedasync=None, oafl=None),
    *_fedoptima("b_image", _TIME_IMAGE, 0.423, None),
    *_times("b_image", _TIME_IMAGE, fl=18.7, pipar=10.0),
    *_times("b_image", _TIME_IMAGE, splitfed=None, fedasync=None, fedbuff=None, oafl=None),
    *_fedoptima("a_text", _TIME_TEXT, 0.9284, 1.71),
    *_times("a_text", _TIME_TEXT, splitfed=1.9, pipar=2.1, fl=10.1),
    *_times("a_text", _TIME_TEXT, fedasync=None, fedbuff=None, oafl=None),
    *_fedoptima("b_text", _TIME_TEXT, 0.834, 0.31),
    _accuracy("b_text.accuracy.fedbuff", "b_text", "fedbuff", 0.818, _TIME_TEXT),
    *_times("b_text", _TIME_TEXT, fedbuff=21.8),
    # ---- 6.2 idle time -----------------------------------------------------------------------
    PaperNumber(
        *("idle.server", None, _M.SERVER_IDLE_REDUCTION, "fedoptima", 0.939),
        *("Sec. 6.2, Fig. 8-9", OTHERS, "", _BEST_IDLE),
    ),
    PaperNumber(
        *("idle.device", None, _M.DEVICE_IDLE_REDUCTION, "fedoptima", 0.818),
        *("Sec. 6.2, Fig. 8-9", OTHERS, "", _BEST_IDLE),
    ),
    # ---- 6.3 throughput ----------------------------------------------------------------------
    *_throughput("a_image", "fedasync", 0.70, _SPEED_IMAGE),
    *_throughput("b_image", "fedasync", 2.0, _SPEED_IMAGE, inverse=True),
    *_throughput("a_text", "pipar", 0.92, _SPEED_TEXT),
    *_throughput("b_text", "pipar", 1.4, _SPEED_TEXT, inverse=True),
    # ---- 6.4 unstable environments, p = 0.5 --------------------------------------------------
    PaperNumber("a_text.retention.fedoptima", "a_text", _M.RETENTION, "fedoptima", 0.67, _UNSTABLE),
    PaperNumber("b_text.retention.fedoptima", "b_text", _M.RETENTION, "fedoptima", 0.69, _UNSTABLE),
    PaperNumber(
        *("a_text.retention.baseline", "a_text", _M.RETENTION, "fedasync", 0.37, _UNSTABLE),
        note=_WHOSE,
    ),
    PaperNumber(
        *("b_text.retention.baseline", "b_text", _M.RETENTION, "fedasync", 0.19, _UNSTABLE),
        note=_WHOSE,
    ),
    # ---- 6.5 ablations -----------------------------------------------------------------------
    PaperNumber(
        *("a_image.auxiliary.default", "a_image", _M.ACCURACY, "fedoptima", 0.82),
        *("Sec. 6.5.1, Fig. 14", "", "about", "82.4 % in Sec. 6.1"),
    ),
    PaperNumber(
        *("b_image.auxiliary.default", "b_image", _M.ACCURACY, "fedoptima", 0.42),
        *("Sec. 6.5.1, Fig. 14", "", "about", "42.3 % in Sec. 6.1"),
    ),
    PaperNumber(
        *("b_image.auxiliary.variants", "b_image", _M.ACCURACY_GAIN, "fedoptima", 0.03),
        *("Sec. 6.5.1, Fig. 14", VARIANTS[0], "at least"),
        "42 % against at most 39 % of: no auxiliary network, classifier only, deep",
    ),
    PaperNumber(
        *("a_image.scheduler", "a_image", _M.ACCURACY_GAIN, "fedoptima", 0.01),
        *("Sec. 6.5.2, Fig. 15", VARIANTS[1], "about"),
    ),
)


_BY_KEY = {each.key: each for each in NUMBERS}


def number(key: str) -> PaperNumber:
    if key not in _BY_KEY:
        raise KeyError(f"{key!r} is no number of the paper; there are {', '.join(_BY_KEY)}")
    return _BY_KEY[key]


def named_in_throughput(workload: str | None) -> set[str]:
    """The methods whose throughput the paper gives; the rest are the others."""
    return {
        name
        for each in NUMBERS
        if each.workload == workload and each.measure is Measure.THROUGHPUT_RATIO
        for name in (each.method, each.against)
    } - {OTHERS}
