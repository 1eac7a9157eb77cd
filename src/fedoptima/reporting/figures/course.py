"""How the runs went: accuracy and throughput, all runs in one figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedoptima.analysis.curve import Point, shown_metrics
from fedoptima.analysis.run_view import RunView
from fedoptima.core.text import cut
from fedoptima.reporting.figures.figure import (
    Figure,
    Json,
    layout,
    line_of,
    looks,
    over_time,
    run_name,
    short,
    steps,
    time_unit,
    titled,
)

_ACCURACY = titled("accuracy, %")
_DOTS = 60  # evaluations that are marked one by one; more are a line


def course(views: Sequence[RunView]) -> list[Figure]:
    figures = [_accuracy_over_time(views), _accuracy_over_epochs(views), *_other_metrics(views)]
    return [figure for figure in (*figures, *_throughputs(views)) if figure.traces]


def _accuracy_over_time(views: Sequence[RunView]) -> Figure:
    unit = time_unit(views)
    return Figure(
        "accuracy-time",
        "Accuracy over time",
        "Higher and further left is better: more accuracy for the same time on the run's clock.",
        _accuracies(views, lambda point: unit.of(point.seconds), unit.name),
        layout(titled(f"time, {unit.name}", rangemode="tozero"), _ACCURACY),
    )


def _accuracy_over_epochs(views: Sequence[RunView]) -> Figure:
    return Figure(
        "accuracy-epochs",
        "Accuracy over epochs",
        "What the same amount of training gives, however long it takes: "
        "a method that waits less gains above, one that learns more from a sample gains here.",
        _accuracies(views, lambda point: short(point.epochs), "epochs"),
        layout(titled("epochs", rangemode="tozero"), _ACCURACY),
    )


def _accuracies(views: Sequence[RunView], x: Callable[[Point], float], unit: str) -> list[Json]:
    def percent(point: Point) -> float | None:
        return None if point.accuracy is None else 100 * point.accuracy

    return _curves(views, x, percent, f"%{{y:.2f}} % at %{{x:.4g}} {unit}")


def _other_metrics(views: Sequence[RunView]) -> list[Figure]:
    """The task's and the user's own; the loss where there is no accuracy."""
    unit = time_unit(views)
    names = dict.fromkeys(name for view in views for name in shown_metrics(view.summary.curve))
    return [
        Figure(
            f"metric-{number}",
            f"{cut(name)} over time",
            "On the validation data.",
            _metric(views, name, lambda point: unit.of(point.seconds), unit.name),
            layout(titled(f"time, {unit.name}", rangemode="tozero"), titled(cut(name))),
            height=280,
        )
        for number, name in enumerate(names)
    ]


def _metric(
    views: Sequence[RunView], name: str, x: Callable[[Point], float], unit: str
) -> list[Json]:
    shown = f"%{{y:.4g}} at %{{x:.4g}} {unit}"
    return _curves(views, x, lambda point: point.metrics.get(name), shown)


def _curves(
    views: Sequence[RunView],
    x: Callable[[Point], float],
    y: Callable[[Point], float | None],
    shown: str,
) -> list[Json]:
    """``y``: None where an evaluation has no such figure; ``shown``: of a point, by the mouse."""
    traces: list[Json] = []
    for view, look in zip(views, looks(views), strict=True):
        points = [(x(p), value) for p in view.summary.curve if (value := y(p)) is not None]
        if points:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(points) <= _DOTS else "lines",
                    "name": run_name(view),
                    "x": [place for place, _ in points],
                    "y": [short(value) for _, value in points],
                    "line": line_of(look),
                    "marker": {"size": 5},
                    "hovertemplate": shown,
                }
            )
    return traces


def _throughputs(views: Sequence[RunView]) -> list[Figure]:
    unit = time_unit(views)
    figures = []
    for side, reading in _SIDES.items():
        traces = []
        for view, look in zip(views, looks(views), strict=True):
            stretches = view.summary.stretches
            speeds = [getattr(stretch.throughput, side) for stretch in stretches]
            if any(speeds):
                ends = [0.0, *(unit.of(stretch.seconds) for stretch in stretches)]
                line = steps(ends, [*speeds, speeds[-1]], run_name(view), line_of(look))
                traces.append({**line, "hovertemplate": "%{y:,.4g} samples/s"})
        owner = {"device": "devices", "server": "server"}.get(side, "server, reused batches")
        figures.append(
            Figure(
                f"throughput-{side}",
                f"Throughput of the {owner}",
                reading,
                traces,
                over_time(unit, "samples/s"),
                height=280,
            )
        )
    return figures


_SIDES = {
    "device": "Samples that all devices together trained on per second, from one evaluation to the "
    "next; a dip is a time in which devices waited or were away.",
    "server": "Samples that the server trained on per second, from one evaluation to the next. "
    "Methods that train nothing on the server have no line.",
    "reused": "Samples that the server trained on again per second, while it had nothing else to "
    "do; they are in no other figure.",
}
