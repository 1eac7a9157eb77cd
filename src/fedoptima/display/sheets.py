"""Results as text, as HTML for a notebook, and as figures; nothing is loaded that is not asked for.

Curves are given by the names of their lines. The HTML stands alone: no scripts, nothing fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedoptima.core.errors import ConfigError
from fedoptima.core.text import printable

Curve = Sequence[tuple[float, float]]  # seconds, value
Curves = Mapping[str, Curve]

# Of Okabe and Ito, which people with any colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 480, 200, 46, 34, 8  # of a picture, and its margins


def as_text(title: str, rows: Sequence[Sequence[str]]) -> str:
    """The first column holds text; of more than two the others hold numbers."""
    rows = [[_plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *cells in rows:
        padded = [
            cell if len(rows[0]) == 2 else cell.rjust(width)
            for cell, width in zip(cells, widths[1:], strict=True)
        ]
        lines.append("  ".join(["", first.ljust(widths[0]), *padded]).rstrip())
    return "\n".join([_plain(title), *lines])


def _plain(text: str) -> str:
    return printable(text, len(text))


def as_html(title: str, rows: Sequence[Sequence[str]], curves: Curves, value: str) -> str:
    """A table, with a picture of the curves below it."""
    side = "left" if len(rows[0]) == 2 else "right"
    body = "".join(
        f'<tr><th style="text-align:left">{escape(first)}</th>'
        + "".join(f'<td style="text-align:{side}">{escape(cell)}</td>' for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    picture = _picture(curves, value) if any(curves.values()) else ""
    return f"<div><b>{escape(title)}</b><table>{body}</table>{picture}</div>"


def _picture(curves: Curves, value: str) -> str:
    """Inline SVG; lines and words have the colour of the notebook's text."""
    drawn = {label: curve for label, curve in curves.items() if curve}
    xs = [x for curve in drawn.values() for x, _ in curve]
    ys = [y for curve in drawn.values() for _, y in curve]
    right, low, high = max(xs) or 1.0, min(ys), max(ys)
    high = high if high > low else low + 1.0
    wide, tall = _WIDTH - _LEFT - _TOP, _HEIGHT - _BOTTOM - _TOP

    def place(x: float, y: float) -> str:
        return f"{_LEFT + wide * x / right:.1f},{_TOP + tall * (high - y) / (high - low):.1f}"

    parts = [
        f'<path d="M{_LEFT},{_TOP}v{tall}h{wide}" fill="none" stroke="currentColor"/>',
        _words(_LEFT - 4, _TOP + 8, f"{high:.3g}", "end"),
        _words(_LEFT - 4, _TOP + tall, f"{low:.3g}", "end"),
        _words(_LEFT, _HEIGHT - 18, "0", "middle"),
        _words(_LEFT + wide, _HEIGHT - 18, f"{right:.3g} s", "end"),
        _words(_LEFT + wide / 2, _HEIGHT - 4, f"{value} over time", "middle"),
    ]
    for number, (label, curve) in enumerate(drawn.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(place(x, y) for x, y in curve)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        if len(drawn) > 1:
            name = _words(_WIDTH + 4, _TOP + 10 + 14 * number, label, "start", colour)
            parts.append(name)
    room = _WIDTH + (160 if len(drawn) > 1 else 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{room}" height="{_HEIGHT}" '
        f'viewBox="0 0 {room} {_HEIGHT}" font-size="11">{"".join(parts)}</svg>'
    )


def _words(x: float, y: float, text: str, anchor: str, colour: str = "currentColor") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text)}</text>"
    )


def as_figure(title: str, curves: Curves, value: str) -> Any:
    """A figure of plotly's."""
    try:
        from plotly import graph_objects
    except ImportError as error:
        raise ConfigError("plot() needs plotly: pip install 'fedoptima[report]'") from error
    figure = graph_objects.Figure(
        layout={"title": title, "xaxis_title": "time, s", "yaxis_title": value}
    )
    for number, (label, curve) in enumerate(curves.items()):
        xs, ys = [x for x, _ in curve], [y for _, y in curve]
        line = {"color": COLOURS[number % len(COLOURS)]}
        figure.add_scatter(x=xs, y=ys, name=label, mode="lines+markers", line=line)
    return figure


def as_frame(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Any:
    """A data frame of pandas."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ConfigError("to_pandas() needs pandas: pip install pandas") from error
    return DataFrame([list(row) for row in rows], columns=list(columns))
