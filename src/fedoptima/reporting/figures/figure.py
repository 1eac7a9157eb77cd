"""A figure as plain data, and what all figures share: units, colours of runs, room for names.

Nothing here needs plotly: its JavaScript draws what these dictionaries say. Colours of text and
grid are not in them, since a page has a light and a dark side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape

from fedoptima.analysis.run_view import RunView
from fedoptima.core.types import SERVER, NodeId
from fedoptima.reporting.palette import METHODS, Look

Json = dict[str, object]

MOST_NODES = 48  # shown one by one
_LONGEST_NAME = 18  # characters of a node beside its lane; a phone has room for no more
_ROW = 22  # pixels of a bar
_DEFAULT_LOOK = next(iter(METHODS.values()))  # of an unknown method


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    reading: str  # one sentence: how to read it
    traces: Sequence[Json]
    layout: Json
    height: int = 340  # pixels
    lanes: Json = field(default_factory=dict)  # a timeline's data, which the page draws itself

    def plain(self) -> Json:
        plain: Json = {"traces": list(self.traces), "layout": self.layout, "height": self.height}
        return {**plain, "lanes": self.lanes} if self.lanes else plain


@dataclass(frozen=True, slots=True)
class Unit:
    """Of time: the largest that leaves figures above 1."""

    name: str
    seconds: float

    def of(self, seconds: float) -> float:
        return short(seconds / self.seconds)


def unit_for(longest: float) -> Unit:
    if longest >= 2 * 3600:
        return Unit("h", 3600.0)
    return Unit("min", 60.0) if longest >= 300 else Unit("s", 1.0)


def time_unit(views: Iterable[RunView]) -> Unit:
    return unit_for(max((view.summary.seconds for view in views), default=0.0))


def short(number: float) -> float:
    """Six figures: more cannot be seen, and would make the page larger."""
    return float(f"{number:.6g}")


def looks(views: Sequence[RunView]) -> list[Look]:
    """A method has its colour and dashes. Where one comes again, or is unknown, the next free
    look is taken, as long as there is one. A single line needs no dashes."""
    if len(views) == 1:
        return [replace(METHODS.get(views[0].method, _DEFAULT_LOOK), dash="solid")]
    taken: list[Look] = []
    for view in views:
        own = METHODS.get(view.method)
        free = [look for look in METHODS.values() if look not in taken]
        if own is None or own in taken:
            own = free[0] if free else own or _DEFAULT_LOOK
        taken.append(own)
    return taken


def line_of(look: Look) -> Json:
    return {"color": look.colour, "dash": look.dash, "width": 2}


def run_name(view: RunView) -> str:
    """In a legend. Plotly takes tags for formatting, and a folder can be called anything."""
    return escape(view.label, quote=False)


def node_name(name: str) -> str:
    """Beside an axis."""
    fits = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    return escape(fits, quote=False)


def shown_nodes(view: RunView) -> list[NodeId]:
    """The server, then the devices by name; of a large fleet those that were idle longest."""
    devices, usage = view.devices, view.summary.usage
    if len(devices) > MOST_NODES:
        devices = sorted(sorted(devices, key=lambda node: -usage[node].idle)[:MOST_NODES])
    return [SERVER, *devices]


def left_out(view: RunView) -> str:
    """A sentence for figures that do not show every device."""
    if len(view.devices) <= MOST_NODES:
        return ""
    return f" Of {len(view.devices):,} devices, the {MOST_NODES} that were idle longest."


def rows_height(rows: int) -> int:
    return 110 + _ROW * rows


def row_axis(names: Sequence[str]) -> Json:
    """Names down the side, the first on top. By place, so that equal names stay apart."""
    return {
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": [node_name(name) for name in names],
        "range": [len(names) - 0.5, -0.5],
        "fixedrange": True,
    }


def titled(title: str, **more: object) -> Json:
    return {"title": {"text": title}, **more}


def layout(x: Json, y: Json, **more: object) -> Json:
    return {"xaxis": x, "yaxis": y, **more}


def over_time(unit: Unit, y: str) -> Json:
    """Both axes from 0."""
    x = titled(f"time, {unit.name}", rangemode="tozero")
    return layout(x, titled(y, rangemode="tozero"))


def bars(rows: Sequence[str], name: str, values: Sequence[float], colour: str, hover: str) -> Json:
    """One kind of horizontal bars, one row per name."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(range(len(rows))),
        "x": [short(value) for value in values],
        "customdata": [escape(row, quote=False) for row in rows],
        "marker": {"color": colour},
        "hovertemplate": f"%{{customdata}}: {hover}<extra>{name}</extra>",
    }


def steps(x: Sequence[float], y: Sequence[float], name: str, line: Mapping[str, object]) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": [short(value) for value in y],
        "line": {**line, "shape": "hv"},
    }


def level_line(name: str, y: float, until: float, colour: str, dash: str = "dash") -> Json:
    """A height to compare with, over the whole width."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [0.0, until],
        "y": [short(y), short(y)],
        "line": {"color": colour, "dash": dash, "width": 1.5},
        "hovertemplate": f"%{{y:.4g}}<extra>{name}</extra>",
    }
