"""From records to charts: plain data that `svg` and `page` draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev

from fedoptima.comparison.cases import Case, shown
from fedoptima.core.errors import ConfigError
from fedoptima.reporting.figures.figure import unit_for
from fedoptima.reporting.palette import METHODS, Look
from fedoptima.reproduction.catalogue import Catalogue, Figure, Panel
from fedoptima.reproduction.measures import MEASURES, Measure
from fedoptima.reproduction.planned import Planned
from fedoptima.reproduction.records import Record, Recorded

_GRID = 80  # points of a mean curve
_DEFAULT = next(iter(METHODS.values()))

Found = Sequence[tuple[Planned, Record]]


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    name: str
    look: Look
    points: Sequence[Point]
    marks: bool = False  # a dot at every point


@dataclass(frozen=True)
class Bar:
    name: str
    colour: str
    value: float
    deviation: float = 0.0


@dataclass(frozen=True)
class Chart:
    """Lines or bars; not both."""

    title: str
    x: str  # the axis
    y: str
    lines: Sequence[Line] = ()
    bars: Sequence[Bar] = ()


def charts_of(
    catalogue: Catalogue, figure: Figure, planned: Sequence[Planned], records: Recorded
) -> list[Chart]:
    """One for each workload and panel; none where nothing is recorded."""
    found = [(run, record) for run in planned if (record := records.get(run.id)) is not None]
    charts = []
    for panel in figure.panels:
        if panel.measure == "startup":  # of all workloads together
            charts += list(_startup(catalogue, found))
            continue
        for workload in figure.workloads:
            own = [(run, record) for run, record in found if run.workload == workload]
            title = catalogue.workloads[workload].title
            charts += [replace(chart, title=title) for chart in _drawn(figure, panel, own)]
    return charts


def _drawn(figure: Figure, panel: Panel, found: Found) -> Iterator[Chart]:
    if not found:
        return
    match panel.draw:
        case "curves":
            yield _curves(found)
        case "bars":
            yield _bars(measure_of(panel), found)
        case "lines":
            yield _lines(figure, panel, found)
        case "splits":
            yield _splits(found[0][1])


def measure_of(panel: Panel) -> Measure:
    if panel.measure not in MEASURES:
        raise ConfigError(
            f"measure = {panel.measure!r}: is not known; there are {', '.join(MEASURES)}"
        )
    return MEASURES[panel.measure]


def by_case(found: Found) -> dict[Case, list[Record]]:
    """In the order of the queue, each with its seeds."""
    grouped: dict[Case, list[Record]] = {}
    for run, record in found:
        grouped.setdefault(run.case, []).append(record)
    return grouped


def _bars(measure: Measure, found: Found) -> Chart:
    bars, cases = [], by_case(found)
    names = _names(list(cases))
    for case, records in cases.items():
        values = [value for record in records if (value := measure.of(record)) is not None]
        if values:
            bars.append(Bar(names[case], _look(case).colour, fmean(values), _deviation(values)))
    return Chart("", f"{measure.title}, {measure.unit}", "", bars=bars)


def _startup(catalogue: Catalogue, found: Found) -> Iterator[Chart]:
    measure = MEASURES["startup"]
    bars = [
        Bar(catalogue.workloads[run.workload].title, _DEFAULT.colour, value)
        for run, record in found
        if (value := measure.of(record)) is not None
    ]
    if bars:
        yield Chart("The Pre-processor, on this machine", f"{measure.unit}", "", bars=bars)


def _lines(figure: Figure, panel: Panel, found: Found) -> Chart:
    measure, key = measure_of(panel), next(iter(figure.vary))
    grouped: dict[Case, dict[float, list[float]]] = {}
    for case, records in by_case(found).items():
        settings = dict(case.settings)
        # What does not reach a method is the same for it everywhere.
        places = (settings.pop(key),) if key in settings else figure.vary[key]
        values = [value for record in records if (value := measure.of(record)) is not None]
        if values:
            points = grouped.setdefault(Case(case.method, tuple(settings.items())), {})
            points |= {float(str(place)): values for place in places}
    lines = []
    for case, points in grouped.items():
        base = fmean(points[min(points)]) if panel.relative else 1.0
        if base:
            scaled = {x: [value / base for value in ys] for x, ys in sorted(points.items())}
            spread = [_point(x, ys) for x, ys in scaled.items()]
            lines.append(Line(case.label, _look(case), spread, marks=True))
    unit = "relative to the first" if panel.relative else measure.unit
    return Chart("", panel.axis or key, f"{measure.title}, {unit}", lines)


def _curves(found: Found) -> Chart:
    cases = by_case(found)
    curves = {case: [_plain(record) for record in records] for case, records in cases.items()}
    last = max((curve[-1][0] for each in curves.values() for curve in each if curve), default=0.0)
    unit = unit_for(last)
    lines = []
    looks, names = _distinct_looks(list(curves)), _names(list(curves))
    for case, several in curves.items():
        known = [curve for curve in several if curve]
        if known:
            points = [replace(point, x=point.x / unit.seconds) for point in _mean_curve(known)]
            lines.append(Line(names[case], looks[case], points))
    return Chart("", f"time, {unit.name}", "accuracy, %", lines)


def _plain(record: Record) -> list[tuple[float, float]]:
    return [(seconds, 100 * a) for seconds, _, a in record.curve if a is not None]


def _mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> list[Point]:
    """Over the time in which all seeds were under way."""
    if len(curves) == 1:
        return [Point(x, y, y, y) for x, y in curves[0]]
    begin = max(curve[0][0] for curve in curves)
    end = min(curve[-1][0] for curve in curves)
    times = [begin + (end - begin) * index / (_GRID - 1) for index in range(_GRID)]
    return [_point(time, [_at(curve, time) for curve in curves]) for time in times]


def _at(curve: Sequence[tuple[float, float]], time: float) -> float:
    """On the straight line between two evaluations."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if x0 <= time <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (time - x0) / (x1 - x0)
    return curve[-1][1]


def _splits(record: Record) -> Chart:
    drawn = {
        "training (forward, slowest device)": ("fedoptima", [row[1] for row in record.candidates]),
        "transfer of the activations": ("fl", [row[2] for row in record.candidates]),
    }
    lines = [
        Line(
            name,
            METHODS[colour],
            [_point(index, [value]) for index, value in enumerate(values, 1)],
            marks=True,
        )
        for name, (colour, values) in drawn.items()
    ]
    chosen = f"blocks on the device (chosen: {record.split}, after {record.split_after})"
    return Chart("", chosen, "s/batch", lines)


def _point(x: float, ys: Sequence[float]) -> Point:
    mean, deviation = fmean(ys), _deviation(ys)
    return Point(x, mean, mean - deviation, mean + deviation)


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _look(case: Case) -> Look:
    return METHODS.get(case.method, _DEFAULT)


def _names(cases: Sequence[Case]) -> Mapping[Case, str]:
    """Short: without what is the same for all, and without the tables that keys are in."""
    methods = {case.method for case in cases}
    names = {}
    for case in cases:
        words = [f"{key.rpartition('.')[2]}={shown(value)}" for key, value in case.settings]
        parts = words if len(methods) == 1 and words else [case.method, *words]
        names[case] = ", ".join(parts)
    return names


def _distinct_looks(cases: Sequence[Case]) -> Mapping[Case, Look]:
    """A method's own look; where several cases are of one method, the next free ones."""
    taken: dict[Case, Look] = {}
    for case in cases:
        free = [look for look in METHODS.values() if look not in taken.values()]
        own = METHODS.get(case.method)
        taken[case] = own if own in free and own is not None else (free or [_DEFAULT])[0]
    return taken
