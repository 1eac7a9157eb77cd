"""What varied settings do: a figure for each measure, along the values of one key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import count
from statistics import fmean, stdev

from fedoptima.comparison.cases import Case, shown
from fedoptima.comparison.retained import KINDS, measures_retention, retention_of_run
from fedoptima.comparison.rows import ComparedRuns, Figures, Run
from fedoptima.reporting.figures.figure import Figure, Json, layout, short, titled
from fedoptima.reporting.palette import METHODS, Look

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_WIDE = 8.0  # the largest value over the smallest from which an axis is logarithmic

Measure = Callable[[Figures], float | None]


def _percent(name: str) -> Measure:
    def read(figures: Figures) -> float | None:
        share: float | None = getattr(figures, name)
        return None if share is None else 100 * share

    return read


def _idle_devices(figures: Figures) -> float | None:
    one, two = figures.device_idle_1_share, figures.device_idle_2_share
    return None if one is None or two is None else 100 * (one + two)


_MEASURES: Mapping[str, tuple[str, str, Measure]] = {  # name: title, axis, how it is read
    "accuracy": ("Final accuracy", "accuracy, %", _percent("accuracy")),
    "best": ("Best accuracy", "accuracy, %", _percent("best_accuracy")),
    "loss": ("Final loss", "loss", lambda f: f.loss),
    "best-loss": ("Best loss", "loss", lambda f: f.best_loss),
    "seconds": ("Time of the run", "time, s", lambda f: f.seconds),
    "server-idle": ("Idle server", "idle, s/epoch", lambda f: f.server_idle),
    "device-idle": (
        "Idle devices",
        "idle, s/epoch",
        lambda f: f.device_idle_1 + f.device_idle_2,
    ),
    "server-idle-share": ("Idle server", "idle, % of its time", _percent("server_idle_share")),
    "device-idle-share": ("Idle devices", "idle, % of their time", _idle_devices),
    "useful": ("Useful samples", "samples/s", lambda f: f.useful_throughput),
    "throughput": ("Throughput of the devices", "samples/s", lambda f: f.device_throughput),
    "traffic": ("Traffic, up and down", "MB/epoch", lambda f: (f.bytes_up + f.bytes_down) / 1e6),
    "memory": ("Server memory at its peak", "MiB", lambda f: f.server_memory / 2**20),
}
_LOSSES = ("loss", "best-loss")  # only where there is no accuracy, which says more


@dataclass(frozen=True)
class _Axis:
    """The varied key that runs from left to right."""

    key: str
    values: Sequence[object]

    @property
    def numeric(self) -> bool:
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)

    def place(self, value: object) -> object:
        return value if self.numeric else shown(value)

    def layout(self) -> Json:
        if not self.numeric:
            return titled(self.key, type="category")
        numbers = [float(value) for value in self.values if isinstance(value, int | float)]
        wide = min(numbers) > 0 and max(numbers) >= _WIDE * min(numbers)
        return titled(self.key, type="log" if wide else "linear", tickvals=numbers)


def axis_of(vary: Mapping[str, Sequence[object]]) -> _Axis:
    """The first key with several values; numbers before words."""
    axes = [_Axis(key, values) for key, values in vary.items()]
    return min(axes, key=lambda axis: (len(axis.values) < 2, not axis.numeric))


def sweep_figures(sweep: ComparedRuns) -> list[Figure]:
    axis = axis_of(sweep.about.vary)
    lines = _lines(sweep, axis)
    figures = []
    if (target := sweep.target) is not None:
        title = f"Time to {100 * target:.1f} %"
        figures.append(
            _figure("target", title, "time, s", lines, axis, lambda r: r.time_to(target))
        )
    if measures_retention(sweep):
        for kind in KINDS:
            title = f"Retention of {kind} samples, R(p) = T(p) / T(0)"
            read_kept = partial(_retained, sweep, kind)
            figures.append(_figure(f"retention-{kind}", title, "R", lines, axis, read_kept))
    for name, (title, unit, read) in _MEASURES.items():
        if name in _LOSSES and not sweep.shows_loss:
            continue
        figures.append(_figure(name, title, unit, lines, axis, partial(_measured, read)))
    return [figure for figure in figures if figure.traces]


def _retained(sweep: ComparedRuns, kind: str, run: Run) -> float | None:
    return retention_of_run(sweep, run)[kind]


def _measured(read: Measure, run: Run) -> float | None:
    return None if run.figures is None else read(run.figures)


@dataclass(frozen=True)
class _Line:
    name: str
    look: Look
    points: Sequence[tuple[object, Sequence[Run]]]  # a value of the axis, and its runs


def _lines(sweep: ComparedRuns, axis: _Axis) -> list[_Line]:
    """One for each method and choice of the other keys."""
    grouped: dict[str, list[Case]] = {}
    for case in sweep.about.cases:
        others = tuple((key, value) for key, value in case.settings if key != axis.key)
        grouped.setdefault(Case(case.method, others).label, []).append(case)
    used: dict[str, count[int]] = {}
    lines = []
    for name, members in grouped.items():
        method = members[0].method
        colour = METHODS.get(method, next(iter(METHODS.values()))).colour
        dash = _DASHES[next(used.setdefault(method, count())) % len(_DASHES)]
        points = [
            (value, sweep.runs_of(case.label))
            for value in axis.values
            for case in members
            # What does not reach a method is the same for it everywhere.
            if dict(case.settings).get(axis.key, value) == value
        ]
        lines.append(_Line(name, Look(colour, dash), points))
    return lines


def _figure(
    name: str,
    title: str,
    unit: str,
    lines: Sequence[_Line],
    axis: _Axis,
    read: Callable[[Run], float | None],
) -> Figure:
    traces: list[Json] = []
    for line in lines:
        found = [
            (axis.place(value), [y for run in runs if (y := read(run)) is not None])
            for value, runs in line.points
        ]
        known = [(x, ys) for x, ys in found if ys]
        if known:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": escape(line.name, quote=False),
                    "x": [x for x, _ in known],
                    "y": [short(fmean(ys)) for _, ys in known],
                    "error_y": {"array": [short(_deviation(ys)) for _, ys in known]},
                    "line": {"color": line.look.colour, "dash": line.look.dash, "width": 2},
                    "hovertemplate": f"%{{y:.4g}} ({unit}) at %{{x}}",
                }
            )
    reading = f"Along {axis.key}: the mean over seeds, with its standard deviation."
    return Figure(name, title, reading, traces, layout(axis.layout(), titled(unit)))


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
