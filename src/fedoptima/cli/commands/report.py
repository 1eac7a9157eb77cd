"""``fedoptima report``: runs as one HTML file that can be opened anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import fedoptima.cli.options as options
from fedoptima.analysis.formatting import megabytes
from fedoptima.display.console import stdout
from fedoptima.display.progress import RecordCounter

if TYPE_CHECKING:
    from fedoptima.reporting.report import Report


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or of a comparison.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file that is written.")
    ] = Path("report.html"),
    advice: Annotated[
        bool,
        typer.Option(
            "--advice/--no-advice", help="Simulate the recipe with changes: what would help?"
        ),
    ] = True,
    allow_modules: options.AllowModules = None,
    quiet: options.Quiet = False,
    as_json: options.AsJSON = False,
) -> None:
    """Make a report of one or several runs: where the time went, as figures and text.

    One HTML file that needs no network. Works for simulated and real runs, including those
    still running.
    """
    from fedoptima.reporting.report import report as make_report

    with RecordCounter(quiet=quiet) as progress:
        allowed = allow_modules or ()
        made = make_report(runs, out=out, advice=advice, allow_modules=allowed, progress=progress)
    if as_json:
        typer.echo(made.to_json())
    else:
        _show(made)


def _show(made: Report) -> None:
    from fedoptima.analysis.findings import compare

    console = stdout()
    said = {"": compare(made.views)} if len(made.views) > 1 else made.sentences
    for sentences in said.values():
        for sentence in sentences:
            console.print(Text(sentence))
    if made.advice is not None:
        console.print()
        for paragraph in made.advice.paragraphs():
            console.print(Text(paragraph))
    instead = "; it replaces the file of that name, -o FILE writes another" if made.replaced else ""
    console.print(f"\n{made.path} ({megabytes(made.nbytes)}){instead}", soft_wrap=True)
