"""Our value of each number that the paper states, one for each seed, from what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedoptima.comparison.cases import Case
from fedoptima.comparison.rows import TARGET_SHARE
from fedoptima.paper_numbers import OTHERS, Measure, PaperNumber, named_in_throughput, number
from fedoptima.reproduction.measures import MEASURES
from fedoptima.reproduction.planned import Planned
from fedoptima.reproduction.records import Record, Recorded

FEDOPTIMA = "fedoptima"
BASELINES = ("fl", "splitfed", "pipar", "fedasync", "fedbuff", "oafl")  # those of the paper
WORKLOADS = ("a_image", "b_image", "a_text", "b_text")
USEFUL, ON_DEVICES = "useful_throughput", "device_throughput"
_MEMORY = 8e9  # bytes

Value = float | None  # None: never, the accuracy was not reached
BySeed = Mapping[int, Record]


@dataclass(frozen=True)
class Results:
    """Recorded runs by figure, workload and case."""

    queue: Mapping[str, Sequence[Planned]]
    records: Recorded
    fleet: str = ""  # what workloads on another fleet end with

    def of(self, figure: str, workload: str) -> dict[Case, dict[int, Record]]:
        found: dict[Case, dict[int, Record]] = {}
        for run in self.queue.get(figure, ()):
            record = self.records.get(run.id)
            if run.workload == f"{workload}{self.fleet}" and record is not None:
                found.setdefault(run.case, {})[run.seed] = record
        return found

    def method(self, figure: str, workload: str, method: str, **settings: object) -> BySeed:
        """Of the case with these settings; of the first one if there are none."""
        for case, seeds in self.of(figure, workload).items():
            short = {key.rpartition(".")[2]: value for key, value in case.settings}
            if case.method == method and settings.items() <= short.items():
                return seeds
        return {}


def figure_of(stated: PaperNumber) -> str:
    """The figure whose runs tell."""
    task = "text" if stated.workload in ("a_text", "b_text") else "image"
    match stated.measure:
        case Measure.COMMUNICATION_CHANGE:
            return "communication"
        case Measure.DEVICES_IN_8_GB:
            return "memory"
        case Measure.STARTUP_SECONDS:
            return "overhead"
        case Measure.SERVER_IDLE_REDUCTION | Measure.DEVICE_IDLE_REDUCTION:
            return "idle-image"
        case Measure.THROUGHPUT_RATIO:
            return f"throughput-{task}"
        case Measure.RETENTION:
            return f"unstable-{str(stated.workload)[0]}"
        case Measure.ACCURACY_GAIN:
            return "auxiliary" if ".auxiliary." in stated.key else "scheduler"
    if "geneous" in stated.key:
        return "homogeneous"
    return "auxiliary" if ".auxiliary." in stated.key else f"accuracy-{task}"


def ours(stated: PaperNumber, results: Results) -> list[Value]:
    """Empty: not run."""
    return _HOW[stated.measure](stated, results)


def beside(stated: PaperNumber, results: Results) -> str:
    """What a reader will ask next; empty: nothing."""
    workload = str(stated.workload)
    match stated.measure:
        case Measure.THROUGHPUT_RATIO:
            said = [_said("in device samples", throughput_ratio(stated, results, ON_DEVICES))]
            said.append(_best_other(results, workload, stated))
            return "; ".join(filter(None, said))
        case Measure.RETENTION:
            said = [
                _said("in device samples", retention(results, workload, stated.method, ON_DEVICES))
            ]
            if stated.method != FEDOPTIMA:
                said.append(_said("PiPar", retention(results, workload, "pipar", USEFUL)))
            return "; ".join(filter(None, said))
        case Measure.SERVER_IDLE_REDUCTION | Measure.DEVICE_IDLE_REDUCTION:
            server = stated.measure is Measure.SERVER_IDLE_REDUCTION
            seconds, share = (_each_workload(results, server, shares) for shares in (False, True))
            return "; by share of the time: ".join(filter(None, (seconds, share)))
    return ""


def _each_workload(results: Results, server: bool, shares: bool) -> str:
    found = {w: idle_reduction(results, w, server=server, shares=shares) for w in WORKLOADS}
    return ", ".join(f"{w} {100 * v:.0f} %" for w, v in found.items() if v is not None)


def _said(what: str, values: Sequence[Value]) -> str:
    known = [value for value in values if value is not None]
    return f"{what}: {fmean(known):.2f}" if known else ""


# ---- training ------------------------------------------------------------------------------------


def _accuracy(stated: PaperNumber, results: Results) -> list[Value]:
    figure, workload = figure_of(stated), str(stated.workload)
    if figure == "homogeneous":
        even = "homogeneous" in stated.key
        for case, seeds in results.of(figure, workload).items():
            preset = str(dict(case.settings).get("fleet.preset"))
            if case.method == stated.method and preset.endswith("homogeneous") == even:
                return _best(seeds)
        return []
    if figure == "auxiliary":
        return _best(results.method(figure, workload, stated.method, auxiliary="default"))
    return _best(results.method(figure, workload, stated.method))


def _best(seeds: BySeed) -> list[Value]:
    return [record.figures["best_accuracy"] for record in seeds.values()]


def _gain(stated: PaperNumber, results: Results) -> list[Value]:
    """Seed by seed, over the best of all variants of the figure that were run with that seed."""
    cases = results.of(figure_of(stated), str(stated.workload))
    default = {
        seed: record
        for case, seeds in cases.items()
        if set(dict(case.settings).values()) <= {"default", "counter"}
        for seed, record in seeds.items()
    }
    gains = list[Value]()
    for seed, record in default.items():
        others = [seeds[seed] for seeds in cases.values() if seeds.get(seed, record) is not record]
        if others:
            best = max(_figure(other, "best_accuracy") for other in others)
            gains.append(_figure(record, "best_accuracy") - best)
    return gains


def _hours(stated: PaperNumber, results: Results) -> list[Value]:
    """Until the paper's accuracy is reached."""
    target = number(f"{stated.workload}.accuracy.{stated.method}").value
    assert target is not None
    seeds = results.method(figure_of(stated), str(stated.workload), stated.method)
    times = [record.run.time_to(target) for record in seeds.values()]
    return [None if time is None else time / 3600 for time in times]


def _time_ratio(stated: PaperNumber, results: Results) -> list[Value]:
    """To 99 % of FedOptima's best accuracy, the mean over its seeds."""
    figure, workload = figure_of(stated), str(stated.workload)
    reference = results.method(figure, workload, FEDOPTIMA)
    other = results.method(figure, workload, stated.method)
    if not reference or not other:
        return []
    target = target_of(reference.values())
    both = [(reference[seed].run.time_to(target), other[seed].run.time_to(target))
            for seed in reference if seed in other]  # fmt: skip
    return [None if mine is None or its is None else its / mine for mine, its in both]


def target_of(reference: Iterable[Record]) -> float:
    return TARGET_SHARE * fmean(_figure(record, "best_accuracy") for record in reference)


# ---- timing --------------------------------------------------------------------------------------


def _throughput_ratio(stated: PaperNumber, results: Results) -> list[Value]:
    return throughput_ratio(stated, results, USEFUL)


def throughput_ratio(stated: PaperNumber, results: Results, measure: str) -> list[Value]:
    """Of samples as ``measure`` counts them."""
    figure, workload = figure_of(stated), str(stated.workload)
    against = results.method(figure, workload, stated.against)
    if stated.method != OTHERS:
        return _ratios(results.method(figure, workload, stated.method), against, measure)
    unnamed = set(BASELINES) - named_in_throughput(workload)
    ratios = [
        _ratios(seeds, against, measure)
        for case, seeds in results.of(figure, workload).items()
        if case.method in unnamed
    ]
    return [max(v for v in each if v is not None) for each in zip(*ratios, strict=False)]


def _best_other(results: Results, workload: str, stated: PaperNumber) -> str:
    """Which baseline has the highest throughput here, where the paper speaks of the best one."""
    if stated.method != OTHERS:
        return ""
    found = [
        (fmean(_figure(record, USEFUL) for record in seeds.values()), case.method)
        for case, seeds in results.of(figure_of(stated), workload).items()
        if case.method in BASELINES
    ]
    return f"here the best baseline is {max(found)[1]}" if found else ""


def _idle_reduction(stated: PaperNumber, results: Results) -> list[Value]:
    """The largest of the four workloads, as the paper says "up to"."""
    server = stated.measure is Measure.SERVER_IDLE_REDUCTION
    found = [
        reduction
        for workload in WORKLOADS
        if (reduction := idle_reduction(results, workload, server=server)) is not None
    ]
    return [max(found)] if len(found) == len(WORKLOADS) else []


def idle_reduction(results: Results, workload: str, *, server: bool, shares: bool = False) -> Value:
    """Against the baseline that is idle least, in seconds an epoch; ``shares``: of the time."""
    name = f"{'server' if server else 'device'}_idle{'_share' if shares else ''}"
    task = workload.partition("_")[2]
    own, others = None, []
    for case, seeds in results.of(f"idle-{task}", workload).items():
        known = [v for each in seeds.values() if (v := MEASURES[name].of(each)) is not None]
        if not known:  # recorded before there was such a measure
            continue
        idle = fmean(known)
        if case.method == FEDOPTIMA:
            own = idle
        elif case.method in BASELINES and idle > 0:
            others.append(idle)
    return None if own is None or not others else 1 - own / min(others)


def _retention(stated: PaperNumber, results: Results) -> list[Value]:
    """R(0.5), over the throughput at p = 0 with changing bandwidths."""
    return retention(results, str(stated.workload), stated.method, USEFUL)


def retention(results: Results, workload: str, method: str, measure: str) -> list[Value]:
    figure = f"unstable-{workload[0]}"
    at, stable = (results.method(figure, workload, method, leave_probability=p) for p in (0.5, 0.0))
    return _ratios(at, stable, measure)


def _communication(stated: PaperNumber, results: Results) -> list[Value]:
    mine, against = (
        results.method("communication", str(stated.workload), method)
        for method in (stated.method, stated.against)
    )
    ratios = _ratios(mine, against, "traffic")
    return [None if ratio is None else ratio - 1 for ratio in ratios]


def _devices_in_memory(stated: PaperNumber, results: Results) -> list[Value]:
    """On the straight line through the least and the most devices that were run."""
    points = {
        int(str(dict(case.settings)["fleet.devices.0.count"])): _figure(record, "server_memory")
        for case, seeds in results.of("memory", "b_image_growing").items()
        if case.method == stated.method
        for record in seeds.values()
    }
    if len(points) < 2:
        return []
    least, most = min(points), max(points)
    each = (points[most] - points[least]) / (most - least)
    return [float(int(least + (_MEMORY - points[least]) / each))]


def _startup(stated: PaperNumber, results: Results) -> list[Value]:
    """The longest of the four workloads."""
    found = [
        _figure(record, "startup")
        for workload in WORKLOADS
        for seeds in results.of("overhead", workload).values()
        for record in seeds.values()
    ]
    return [max(found)] if len(found) == len(WORKLOADS) else []


_HOW: Mapping[Measure, Callable[[PaperNumber, Results], list[Value]]] = {
    Measure.ACCURACY: _accuracy,
    Measure.ACCURACY_GAIN: _gain,
    Measure.HOURS: _hours,
    Measure.TIME_RATIO: _time_ratio,
    Measure.THROUGHPUT_RATIO: _throughput_ratio,
    Measure.SERVER_IDLE_REDUCTION: _idle_reduction,
    Measure.DEVICE_IDLE_REDUCTION: _idle_reduction,
    Measure.RETENTION: _retention,
    Measure.COMMUNICATION_CHANGE: _communication,
    Measure.DEVICES_IN_8_GB: _devices_in_memory,
    Measure.STARTUP_SECONDS: _startup,
}


# ---- of records ----------------------------------------------------------------------------------


def _ratios(mine: BySeed, against: BySeed, measure: str) -> list[Value]:
    """By seed; none of runs that were recorded before there was such a measure."""
    read = MEASURES[measure].of
    pairs = [(read(mine[seed]), read(against[seed])) for seed in mine if seed in against]
    return [a / b for a, b in pairs if a is not None and b]


def _figure(record: Record, name: str) -> float:
    value = record.figures[name]
    assert value is not None
    return value
