"""A sweep as one HTML file: a figure for each measure, and the table."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from pathlib import Path

from fedoptima.comparison.result import lines, notes, setting_cells
from fedoptima.comparison.rows import ComparedRuns
from fedoptima.reporting.figures.figure import Figure
from fedoptima.reporting.figures.sweep import sweep_figures
from fedoptima.reporting.figures.tables import TextTable
from fedoptima.reporting.report_page import Page, document, drawn, text_table
from fedoptima.trace.run_folder import write_whole
from fedoptima.version import __version__


def write_sweep_page(sweep: ComparedRuns, path: Path) -> None:
    """Needs plotly: a `ConfigError` says so where it is missing."""
    title = f"{sweep.name}: {len(sweep.rows)} settings, {len(sweep.runs)} runs"
    made = f"Made on {datetime.now(UTC):%Y-%m-%d} by fedoptima {__version__}."
    figures: dict[str, Figure] = {}
    body = "\n".join(
        [
            f'<header><h1>{escape(title)}</h1><p class="soft">{escape(made)}</p></header><main>',
            "<section>",
            *drawn(sweep_figures(sweep), "sweep", figures),
            f"</section><section>{text_table(_table(sweep))}</section></main>",
        ]
    )
    write_whole(path, document(Page(title, made), body, figures))


def _table(sweep: ComparedRuns) -> TextTable:
    table = lines(sweep)
    return TextTable(
        "Figures as text",
        " ".join(notes(sweep)),
        ["method", *sweep.about.vary, *(name for name, _ in table)],
        [
            [row.method, *setting_cells(sweep, row), *(cells[index] for _, cells in table)]
            for index, row in enumerate(sweep.rows)
        ],
    )
