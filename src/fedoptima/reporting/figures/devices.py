"""What each device contributed, and how old it was when it was used."""

from __future__ import annotations

from fedoptima.analysis.formatting import duration
from fedoptima.analysis.run_view import RunView
from fedoptima.analysis.spans import Kind
from fedoptima.core.types import SERVER
from fedoptima.reporting.figures.figure import (
    Figure,
    Json,
    bars,
    layout,
    left_out,
    row_axis,
    rows_height,
    short,
    shown_nodes,
    titled,
)
from fedoptima.reporting.palette import KINDS_ON_LIGHT

_BAR, _MARK = KINDS_ON_LIGHT[Kind.TRAIN], KINDS_ON_LIGHT[Kind.IDLE_2]


def contributions(view: RunView) -> Figure:
    """Batches where the server trains, else updates."""
    devices = [node for node in shown_nodes(view) if node != SERVER]
    balance = view.summary.balance
    evenness: float | None
    found = {node: balance.devices.get(node) for node in devices}
    if balance.batches_jain is not None:
        values = [entry.batches if entry else 0 for entry in found.values()]
        title, unit, evenness = "Batches used per device", "batches", balance.batches_jain
        reading = "Activation batches of each device that the server has trained on."
    else:
        values = [entry.updates if entry else 0 for entry in found.values()]
        title, unit, evenness = "Updates merged per device", "updates", balance.merge_weight_jain
        reading = "Model updates of each device that went into the global model."
    if evenness is not None:
        reading += f" Jain's index of balance is {evenness:.2f} (1: all alike)."
    return Figure(
        "contributions",
        title,
        reading + left_out(view),
        [bars(devices, unit, values, _BAR, f"%{{x:,}} {unit}")],
        layout(titled(unit, rangemode="tozero"), row_axis(devices), showlegend=False),
        rows_height(len(devices)),
    )


def staleness(view: RunView) -> Figure | None:
    """None where every update was merged into the version it began with."""
    stale = view.summary.staleness
    if not stale.max and not stale.refused:
        return None
    devices = [node for node in shown_nodes(view) if node != SERVER]
    found = [stale.devices.get(node) for node in devices]
    most: Json = {
        "type": "scatter",
        "mode": "markers",
        "name": "most",
        "y": list(range(len(devices))),
        "x": [entry.max if entry else 0 for entry in found],
        "marker": {"color": _MARK, "symbol": "line-ns-open", "size": 12, "line": {"width": 3}},
        "hovertemplate": "at most %{x} versions<extra></extra>",
    }
    means = [entry.mean if entry else 0.0 for entry in found]
    mean = bars(devices, "mean", means, _BAR, "%{x:.2f} versions behind")
    samples = f"{view.summary.refused_samples:,} samples"
    refused = f" {stale.refused:,} ({samples}) were refused as too old." if stale.refused else ""
    return Figure(
        "staleness",
        "Staleness of updates",
        "How many versions the global model had advanced when a device's update was merged."
        f"{refused}{left_out(view)}",
        [mean, most],
        layout(titled("versions behind", rangemode="tozero"), row_axis(devices)),
        rows_height(len(devices)),
    )


def ages(view: RunView) -> Figure | None:
    """None where the server has used no activations."""
    stale = view.summary.staleness
    counts = stale.activation_ages
    total = sum(counts)
    if not total:
        return None
    first = next(index for index, count in enumerate(counts) if count)
    trace: Json = {
        "type": "bar",
        "name": "batches",
        "x": [f"< {duration(2.0**index / 1000)}" for index in range(first, len(counts))],
        "y": [short(100 * count / total) for count in counts[first:]],
        "customdata": list(counts[first:]),
        "marker": {"color": _BAR},
        "hovertemplate": "%{y:.1f} % (%{customdata:,} batches)<extra></extra>",
    }
    return Figure(
        "ages",
        "Age of activations",
        "How long activation batches had waited at the server when they were used: "
        f"{duration(stale.activation_age_mean)} on average, "
        f"{duration(stale.activation_age_max)} at most. Each bar is twice as wide in time as the "
        "one before.",
        [trace],
        layout(titled("waited", type="category"), titled("% of batches"), showlegend=False),
        height=280,
    )
