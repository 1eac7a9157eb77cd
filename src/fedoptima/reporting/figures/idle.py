"""Idle time: who waited how long, and for whom. The numbers are those of `Summary.usage`."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.run_view import RunView
from fedoptima.analysis.spans import Kind
from fedoptima.reporting.figures.figure import (
    Figure,
    bars,
    layout,
    left_out,
    row_axis,
    rows_height,
    shown_nodes,
    titled,
)
from fedoptima.reporting.palette import KIND_NAMES, KINDS_ON_LIGHT

_HOVER = "%{x:.3g} s an epoch"


def idle_of_runs(views: Sequence[RunView]) -> Figure:
    """Server and mean device of every run."""
    rows: list[str] = []
    uses: list[Usage] = []
    for view in views:
        summary = view.summary
        rows += [f"{view.label}: server", f"{view.label}: devices"]
        uses += map(summary.usage_per_epoch, (summary.server_usage, summary.device_usage))
    return _figure(
        "idle-runs",
        "Idle time by run",
        "Seconds an epoch in which the server, and the mean device, had nothing to do; "
        "shorter is better.",
        rows,
        uses,
    )


def idle_of_nodes(view: RunView) -> Figure:
    nodes, summary = shown_nodes(view), view.summary
    return _figure(
        "idle",
        "Idle time by node",
        "Seconds an epoch in which a node had nothing to do: the other side (server or devices) "
        f"or a slower device kept it waiting.{left_out(view)}",
        list(nodes),
        [summary.usage_per_epoch(summary.usage[node]) for node in nodes],
    )


def _figure(
    name: str, title: str, reading: str, rows: Sequence[str], uses: Sequence[Usage]
) -> Figure:
    kinds = (
        (Kind.IDLE_1, [use.idle_1 for use in uses]),
        (Kind.IDLE_2, [use.idle_2 for use in uses]),
    )
    traces = [
        bars(rows, f"{numeral}: {KIND_NAMES[kind]}", seconds, KINDS_ON_LIGHT[kind], _HOVER)
        for numeral, (kind, seconds) in zip(("Type I", "Type II"), kinds, strict=True)
    ]
    axes = layout(titled("idle, s/epoch", rangemode="tozero"), row_axis(rows), barmode="stack")
    return Figure(name, title, reading, traces, axes, rows_height(len(rows)))
