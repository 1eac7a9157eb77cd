"""What the server held and what passed it: queue, memory, traffic."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.analysis.level import Level
from fedoptima.analysis.run_view import RunView
from fedoptima.analysis.spans import Kind
from fedoptima.reporting.figures.figure import (
    Figure,
    Unit,
    bars,
    layout,
    level_line,
    line_of,
    looks,
    over_time,
    row_axis,
    rows_height,
    run_name,
    short,
    steps,
    time_unit,
    titled,
)
from fedoptima.reporting.palette import KINDS_ON_LIGHT

_MIB = 2.0**20
_LINE = {"color": KINDS_ON_LIGHT[Kind.TRAIN], "width": 2}
_LIMIT = KINDS_ON_LIGHT[Kind.IDLE_2]
_OTHER_LIMIT = KINDS_ON_LIGHT[Kind.RECEIVE]

_CARRIED = {  # attribute of `Volume`: name, colour
    "activations": ("activations", KINDS_ON_LIGHT[Kind.SEND]),
    "gradients": ("gradients", KINDS_ON_LIGHT[Kind.RECEIVE]),
    "models": ("models", KINDS_ON_LIGHT[Kind.TRAIN]),
    "control": ("control", KINDS_ON_LIGHT[Kind.OTHER]),
}


def queue(view: RunView) -> Figure | None:
    """None where nothing ever waited."""
    level, cap, unit = view.summary.memory.queue, view.description.activation_cap, time_unit([view])
    if not level.peak:
        return None
    line = steps(_times(level, unit), _values(level), "waiting", _LINE)
    traces = [{**line, "hovertemplate": "%{y:.3g} batches at %{x:.4g} " + unit.name}]
    reading = "Activation batches that waited at the server (the mean over each step)."
    if cap is not None:
        until = unit.of(view.summary.seconds)
        traces.append(level_line("cap (omega)", cap, until, _LIMIT))
        reading += " Near the cap the server is the slower side; near zero it waits for devices."
    return Figure(
        "queue",
        "Activation queue" if cap is None else "Activation queue against its cap",
        reading,
        traces,
        over_time(unit, "batches"),
        height=280,
    )


def memory(view: RunView) -> Figure:
    """With the paper's formulas (section 2.2) for this run's devices and longest queue."""
    held, unit = view.summary.memory, time_unit([view])
    level, until = held.total, unit.of(view.summary.seconds)
    line = steps(_times(level, unit), _values(level, 1 / _MIB), "held", _LINE)
    traces = [{**line, "hovertemplate": "%{y:.4g} MiB at %{x:.4g} " + unit.name}]
    if held.formula_copies:
        for name, nbytes, colour, dash in (
            ("model + queue (Eq. 3)", held.formula_shared, _LIMIT, "dash"),
            ("a copy per device (Eq. 2)", held.formula_copies, _OTHER_LIMIT, "dot"),
        ):
            traces.append(level_line(name, nbytes / _MIB, until, colour, dash))
    reading = "Models, activations and waiting updates that the server held."
    if held.formula_copies:
        reading += (
            " The lines are the paper's formulas, which leave the devices' models out: one server "
            "side and the longest queue, or a server side and a batch for every device."
        )
    axes = over_time(unit, "MiB")
    return Figure("memory", "Server memory", reading, traces, axes, height=300)


def memory_of_runs(views: Sequence[RunView]) -> Figure:
    unit = time_unit(views)
    traces = []
    for view, look in zip(views, looks(views), strict=True):
        level = view.summary.memory.total
        line = steps(_times(level, unit), _values(level, 1 / _MIB), run_name(view), line_of(look))
        traces.append({**line, "hovertemplate": "%{y:.4g} MiB"})
    return Figure(
        "memory-runs",
        "Server memory by run",
        "Models, activations and waiting updates that the server held over time.",
        traces,
        over_time(unit, "MiB"),
    )


def traffic(views: Sequence[RunView]) -> Figure:
    rows, volumes = [], []
    for view in views:
        label = f"{view.label}: " if len(views) > 1 else ""
        rows += [f"{label}up", f"{label}down"]
        for volume in (view.summary.traffic.up, view.summary.traffic.down):
            volumes.append((view.summary, volume))
    traces = []
    for kind, (name, colour) in _CARRIED.items():
        sizes = [s.per_epoch(getattr(volume, kind)) / 1e6 for s, volume in volumes]
        if any(sizes):
            traces.append(bars(rows, name, sizes, colour, "%{x:.4g} MB an epoch"))
    return Figure(
        "traffic",
        "Bytes per epoch",
        "What the devices sent to the server (up) and got from it (down), by what it carried.",
        traces,
        layout(titled("MB/epoch", rangemode="tozero"), row_axis(rows), barmode="stack"),
        rows_height(len(rows)),
    )


def _times(level: Level, unit: Unit) -> list[float]:
    """The beginning of every bin, and once more the last value, so that its step is seen."""
    return [unit.of(index * level.bin_seconds) for index in range(len(level.bins) + 1)]


def _values(level: Level, scale: float = 1.0) -> list[float]:
    values = [short(scale * value) for value in level.bins]
    return [*values, *values[-1:]]
