"""Charts as SVG, in plain text: no library, nothing fetched, the same bytes every time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from fedoptima.analysis.formatting import brief
from fedoptima.reproduction.charts import Bar, Chart, Line

_WIDE, _TALL = 440, 260  # of one chart
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 30, 44  # its margins
_ROW, _LETTER = 22, 6.2  # of bars; the mean width of a letter
_LEGEND = 16  # a line of it
_COLUMNS = 2
_TEXT, _GRID = "#222222", "#dddddd"
_DASHES = {
    "solid": "",
    "dash": "7,4",
    "dot": "2,3",
    "dashdot": "7,3,2,3",
    "longdash": "11,4",
    "longdashdot": "11,3,2,3",
}


def draw(title: str, charts: Sequence[Chart]) -> str:
    """All charts of a figure, two in a row."""
    rows = [charts[at : at + _COLUMNS] for at in range(0, len(charts), _COLUMNS)]
    parts: list[str] = []
    y = 34
    for row in rows:
        for column, chart in enumerate(row):
            inside = "".join(_chart(chart))
            parts.append(f'<g transform="translate({column * _WIDE},{y})">{inside}</g>')
        y += max(_height(chart) for chart in row)
    wide = max(_WIDE * min(_COLUMNS, len(charts)), 24 + 9.5 * len(title))
    head = _words(12, 22, title, size=15, weight="bold")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{wide:.0f}" height="{y}" '
        f'viewBox="0 0 {wide:.0f} {y}" font-family="sans-serif" font-size="11">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="{wide:.0f}" height="{y}" fill="white"/>\n{head}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _height(chart: Chart) -> int:
    if chart.bars:
        return _TOP + _ROW * len(chart.bars) + 34
    return _TALL + _LEGEND * math.ceil(len(chart.lines) / 2)


def _chart(chart: Chart) -> Iterator[str]:
    yield _words(_WIDE / 2, 16, chart.title, anchor="middle", size=12)
    yield from _bars(chart) if chart.bars else _plot(chart)


# ---- bars ----------------------------------------------------------------------------------------


def _bars(chart: Chart) -> Iterator[str]:
    most = max((bar.value + bar.deviation for bar in chart.bars), default=1.0) or 1.0
    left = 14 + _LETTER * max(len(_cut(bar.name)) for bar in chart.bars)
    room = _WIDE - left - 70
    for index, bar in enumerate(chart.bars):
        yield from _bar(bar, left, _TOP + _ROW * index, room / most)
    bottom = _TOP + _ROW * len(chart.bars) + 16
    yield _words(left + room / 2, bottom, chart.x, anchor="middle")


def _bar(bar: Bar, left: float, y: float, scale: float) -> Iterator[str]:
    width = max(0.0, bar.value * scale)
    yield _words(left - 6, y + 14, _cut(bar.name), anchor="end")
    place = f'x="{left:.1f}" y="{y + 3}" width="{width:.1f}" height="15"'
    yield f'<rect {place} fill="{bar.colour}"/>'
    end = width
    if bar.deviation:
        low, end = (bar.value - bar.deviation) * scale, (bar.value + bar.deviation) * scale
        x = left + low
        yield f'<path d="M{x:.1f},{y + 10.5}h{end - low:.1f}" stroke="{_TEXT}" fill="none"/>'
    yield _words(left + end + 5, y + 14, brief(bar.value))


def _cut(name: str, most: int = 40) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


# ---- lines ---------------------------------------------------------------------------------------


def _plot(chart: Chart) -> Iterator[str]:
    points = [point for line in chart.lines for point in line.points]
    if not points:
        return
    x0, x1 = _range([point.x for point in points])
    y0, y1 = _range([each for point in points for each in (point.low, point.high)])
    wide, tall = _WIDE - _LEFT - _RIGHT, _TALL - _TOP - _BOTTOM

    def place(x: float, y: float) -> str:
        across = _LEFT + wide * (x - x0) / (x1 - x0)
        return f"{across:.1f},{_TOP + tall * (y1 - y) / (y1 - y0):.1f}"

    for tick in _ticks(y0, y1):
        _, at = place(x0, tick).split(",")
        yield f'<path d="M{_LEFT},{at}h{wide}" stroke="{_GRID}"/>'
        yield _words(_LEFT - 5, float(at) + 4, f"{tick:.6g}", anchor="end")
    for tick in _ticks(x0, x1):
        at, _ = place(tick, y0).split(",")
        yield f'<path d="M{at},{_TOP + tall}v4" stroke="{_TEXT}"/>'
        yield _words(float(at), _TOP + tall + 16, f"{tick:.6g}", anchor="middle")
    yield f'<path d="M{_LEFT},{_TOP}v{tall}h{wide}" fill="none" stroke="{_TEXT}"/>'
    for line in chart.lines:
        spread = [place(p.x, p.high) for p in line.points]
        spread += [place(p.x, p.low) for p in reversed(line.points)]
        if any(p.high > p.low for p in line.points):
            corners = " ".join(spread)
            yield f'<polygon points="{corners}" fill="{line.look.colour}" fill-opacity="0.15"/>'
        path = " ".join(place(p.x, p.y) for p in line.points)
        yield f'<polyline points="{path}" fill="none" {_stroke(line)}/>'
        if line.marks:
            for spot in (place(p.x, p.y).split(",") for p in line.points):
                yield f'<circle cx="{spot[0]}" cy="{spot[1]}" r="2.5" fill="{line.look.colour}"/>'
    yield _words(_LEFT + wide / 2, _TALL - 10, chart.x, anchor="middle")
    middle = _TOP + tall / 2
    turned = f' transform="rotate(-90 12 {middle:.0f})"'
    yield _words(12, middle, chart.y, anchor="middle", more=turned)
    for index, line in enumerate(chart.lines):
        x, y = _LEFT + (index % 2) * wide / 2, _TALL + _LEGEND * (index // 2)
        yield f'<path d="M{x:.0f},{y}h22" {_stroke(line)}/>'
        yield _words(x + 27, y + 4, _cut(line.name, 26))


def _stroke(line: Line) -> str:
    dash = _DASHES.get(line.look.dash, "5,2")
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{line.look.colour}" stroke-width="2"{dashes}'


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From 0 where that is near; never empty."""
    low, high = min(values), max(values)
    if 0 <= low < 0.5 * high or low == high:
        low = min(low, 0.0)
    return (low, high) if high > low else (low, low + 1.0)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _words(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 11,
    weight: str = "normal",
    more: str = "",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_TEXT}" '
        f'font-size="{size}" font-weight="{weight}"{more}>{escape(text)}</text>'
    )
