"""The report as one HTML file that needs nothing else: plotly's JavaScript is in it, once.

The page forbids itself every request (its Content-Security-Policy allows only what is in it). All
text from outside - names of runs, devices, errors - is escaped here, and only here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import resources

from fedoptima.analysis.findings import compare, describe
from fedoptima.analysis.run_view import RunView
from fedoptima.core.errors import ConfigError
from fedoptima.reporting.figures.course import course
from fedoptima.reporting.figures.devices import ages, contributions, staleness
from fedoptima.reporting.figures.figure import Figure, Json
from fedoptima.reporting.figures.idle import idle_of_nodes, idle_of_runs
from fedoptima.reporting.figures.lanes import KINDS, timeline
from fedoptima.reporting.figures.server import memory, memory_of_runs, queue, traffic
from fedoptima.reporting.figures.tables import TextTable, key_figures, nodes, own_data, splits
from fedoptima.reporting.palette import KIND_NAMES, KINDS_ON_DARK, KINDS_ON_LIGHT

_MOST_SPANS = 60_000  # of all runs: beyond, timelines are drawn from their bins
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
)


@dataclass(frozen=True)
class Page:
    """What stands in a report beside the runs."""

    title: str
    made: str  # when, and by which version
    advice: Sequence[str] = ()  # "what would help"; empty: it was not asked for


def render(page: Page, views: Sequence[RunView]) -> str:
    figures: dict[str, Figure] = {}
    body = "\n".join(_body(page, views, figures))
    return document(page, body, figures)


def document(page: Page, body: str, figures: Mapping[str, Figure]) -> str:
    """One HTML file with everything in it. ``figures``: by the id of their place in the body."""
    data: Json = {
        "figures": {key: figure.plain() for key, figure in figures.items()},
        "kinds": [
            {
                "key": kind.value,
                "name": KIND_NAMES[kind],
                "light": KINDS_ON_LIGHT[kind],
                "dark": KINDS_ON_DARK[kind],
            }
            for kind in KINDS
        ],
    }
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="{escape(page.made)}">
<title>{escape(page.title)}</title>
<link rel="icon" href="data:,">
<style>
{_file("report.css")}</style>
</head>
<body>
{body}
<script type="application/json" id="report-data">{_embedded(data)}</script>
<script>{plotly_source()}</script>
<script>
{_file("report.js")}</script>
</body>
</html>
"""


def _body(page: Page, views: Sequence[RunView], figures: dict[str, Figure]) -> Iterator[str]:
    several = len(views) > 1
    yield f"<header><h1>{escape(page.title)}</h1>"
    yield f'<p class="soft">{escape(page.made)}</p></header>'
    yield "<main>"
    yield _sentences("In short", compare(views) if several else describe(views[0]))
    if page.advice:
        yield _advice(page.advice)
    yield "<noscript><p>The figures are drawn by JavaScript, which is off. The tables at the end "
    yield "have the same numbers; these are the main ones.</p>"
    yield f"{text_table(key_figures(views))}</noscript>"
    yield f"<section><h2>{'All runs' if several else 'Course'}</h2>"
    shared = course(views)
    if several:
        shared = [*shared[:2], idle_of_runs(views), *shared[2:]]
        shared += [traffic(views), memory_of_runs(views)]
    yield from drawn(shared, "all", figures)
    yield "</section>"
    if several:
        yield '<h2>Run by run</h2><p class="choice"><label>Show '
        yield f'<select id="choose-run">{"".join(_choices(views))}</select></label></p>'
    exact = sum(len(view.timeline.exact or ()) for view in views) <= _MOST_SPANS
    for index, view in enumerate(views):
        yield from _run(f"run-{index}", view, figures, several=several, exact=exact)
    yield "<section><h2>Figures as text</h2>"
    yield text_table(key_figures(views))
    for view in views:
        yield text_table(_named(nodes(view), view, several))
        if (own := own_data(view)) is not None:
            yield text_table(_named(own, view, several))
    yield "</section></main>"
    yield "<footer><p class='soft'>Type I idle time is waiting for the other side: a server for "
    yield "activations or updates, a device for gradients or the merged model. Type II is waiting "
    yield "for slower devices. All numbers come from the runs' traces.</p></footer>"


def _run(
    key: str, view: RunView, figures: dict[str, Figure], *, several: bool, exact: bool
) -> Iterator[str]:
    yield f'<section class="run" id="{key}"{" hidden" if several and key != "run-0" else ""}>'
    yield f"<h2>{escape(view.label) if several else 'Where the time went'}</h2>"
    if several:
        yield _sentences("In short", describe(view))
    parts = [timeline(view, exact=exact), idle_of_nodes(view), queue(view), contributions(view)]
    parts += [staleness(view), ages(view), memory(view)]
    if not several:
        parts.append(traffic([view]))
    yield from drawn([part for part in parts if part is not None], key, figures)
    cuts = splits(view)
    if cuts is not None:
        yield text_table(cuts)
    yield "</section>"


def _choices(views: Sequence[RunView]) -> Iterator[str]:
    for index, view in enumerate(views):
        yield f'<option value="run-{index}">{escape(view.label)}</option>'


def _named(table: TextTable, view: RunView, several: bool) -> TextTable:
    return replace(table, title=f"{table.title} of {view.label}") if several else table


def _sentences(title: str, sentences: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="summary"><h3>{title}</h3><ul>{lines}</ul></div>'


def _advice(paragraphs: Sequence[str]) -> str:
    lines = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)
    return f'<div class="advice"><h3>What would help</h3>{lines}</div>'


def drawn(found: Sequence[Figure], place: str, figures: dict[str, Figure]) -> Iterator[str]:
    for figure in found:
        key = f"{place}-{figure.name}"
        figures[key] = figure
        legend = _legend() if figure.lanes else ""
        yield (
            f"<figure><h3>{escape(figure.title)}</h3>"
            f"<figcaption>{escape(figure.reading)}</figcaption>{legend}"
            f'<div class="plot" id="{key}" style="min-height:{figure.height}px"></div></figure>'
        )


def _legend() -> str:
    items = "".join(
        f'<li><i style="--light:{KINDS_ON_LIGHT[kind]};--dark:{KINDS_ON_DARK[kind]}"></i>'
        f"{escape(KIND_NAMES[kind])}</li>"
        for kind in KINDS
    )
    return f'<ul class="legend">{items}</ul>'


def text_table(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    rows = "".join(
        ('<tr class="marked">' if index == table.marked else "<tr>")
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for index, row in enumerate(table.rows)
    )
    return (
        f"<h3>{escape(table.title)}</h3><p class='soft'>{escape(table.reading)}</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _embedded(data: Json) -> str:
    """JSON that no name in it can break out of: a page ends a script at its first end tag."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _file(name: str) -> str:
    return (resources.files("fedoptima.reporting") / "page" / name).read_text(encoding="utf-8")


def plotly_source() -> str:
    """From the installed package; a `ConfigError` where it is not."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError(
            "a report needs plotly, which is not installed; get it with: "
            "pip install 'fedoptima[report]'"
        ) from error
    source: str = get_plotlyjs()
    return source
