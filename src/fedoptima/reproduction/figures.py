"""The figures drawn from what is recorded: an SVG for each, and one interactive page for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import fedoptima.reporting.figures.figure as drawing
from fedoptima.experiments.run_directory import make_folder
from fedoptima.reporting.report_page import Page, document, drawn
from fedoptima.reproduction.catalogue import Catalogue, Figure
from fedoptima.reproduction.charts import Chart, charts_of
from fedoptima.reproduction.planned import Planned
from fedoptima.reproduction.records import Records
from fedoptima.reproduction.retiming import Retimed
from fedoptima.reproduction.svg import draw
from fedoptima.trace.run_folder import write_whole
from fedoptima.version import __version__

PICTURES = "figures"
PAGE = "reproduction.html"

Charts = Mapping[str, Sequence[Chart]]  # by the name of the figure


def all_charts(
    catalogue: Catalogue,
    figures: Mapping[str, Figure],
    queue: Mapping[str, Sequence[Planned]],
    records: Records,
) -> Charts:
    """Of those figures of which something is recorded."""
    shown = Retimed(catalogue, queue, records)
    found = {
        name: charts_of(catalogue, figure, queue[name], shown) for name, figure in figures.items()
    }
    return {name: charts for name, charts in found.items() if charts}


def write_pictures(charts: Charts, figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    make_folder(folder)
    written = []
    for name, of_figure in charts.items():
        path = folder / f"{name}.svg"
        write_whole(path, draw(title_of(figures[name]), of_figure))
        written.append(path)
    return written


def title_of(figure: Figure) -> str:
    return f"{figure.place}: {figure.title}"


def write_page(charts: Charts, figures: Mapping[str, Figure], path: Path) -> None:
    """Needs plotly: a `ConfigError` says so where it is missing."""
    title = "The figures of the FedOptima paper, reproduced"
    made = f"Made on {datetime.now(UTC):%Y-%m-%d} by fedoptima {__version__}."
    placed: dict[str, drawing.Figure] = {}
    body = [f'<header><h1>{escape(title)}</h1><p class="soft">{escape(made)}</p></header><main>']
    for name, of_figure in charts.items():
        body.append(f"<section><h2>{escape(title_of(figures[name]))}</h2>")
        shown = [interactive(chart, index) for index, chart in enumerate(of_figure)]
        body += [*drawn(shown, name, placed), "</section>"]
    write_whole(path, document(Page(title, made), "\n".join([*body, "</main>"]), placed))


def interactive(chart: Chart, index: int) -> drawing.Figure:
    reading = f"{chart.x or chart.y}: the mean over seeds, with its standard deviation."
    if chart.bars:
        names = [bar.name for bar in chart.bars]
        bars: drawing.Json = {
            "type": "bar",
            "orientation": "h",
            "y": list(range(len(names))),
            "x": [drawing.short(bar.value) for bar in chart.bars],
            "error_x": {"array": [drawing.short(bar.deviation) for bar in chart.bars]},
            "customdata": [escape(name, quote=False) for name in names],
            "marker": {"color": [bar.colour for bar in chart.bars]},
            "hovertemplate": "%{customdata}: %{x:.4g}<extra></extra>",
        }
        shape = drawing.layout(drawing.titled(chart.x), drawing.row_axis(names))
        height = drawing.rows_height(len(names))
        return drawing.Figure(f"chart-{index}", chart.title, reading, [bars], shape, height)
    lines: list[drawing.Json] = [
        {
            "type": "scatter",
            "mode": "lines+markers" if line.marks else "lines",
            "name": escape(line.name, quote=False),
            "x": [drawing.short(point.x) for point in line.points],
            "y": [drawing.short(point.y) for point in line.points],
            "error_y": {"array": [drawing.short(p.high - p.y) for p in line.points]}
            if line.marks
            else {},
            "line": drawing.line_of(line.look),
        }
        for line in chart.lines
    ]
    shape = drawing.layout(drawing.titled(chart.x), drawing.titled(chart.y))
    return drawing.Figure(f"chart-{index}", chart.title, reading, lines, shape)
