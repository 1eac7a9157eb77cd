"""``fedoptima report``: runs as one HTML file that can be opened anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedoptima.cli.console import stderr, stdout
from fedoptima.cli.progress import Cadence, shows_live
from fedoptima.cli.wording import megabytes

if TYPE_CHECKING:
    from fedoptima.api.reporting import Progress, Report


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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only the result.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what the report says as JSON.")
    ] = False,
) -> None:
    """Make a report of one or several runs: where the time went, in figures and words.

    One HTML file that needs no network. Works for simulated and real runs, also for those that
    still go on.
    """
    from fedoptima.api.reporting import report as make_report

    with _Progress(quiet=quiet) as progress:
        made = make_report(runs, out=out, advice=advice, progress=progress)
    if as_json:
        typer.echo(made.to_json())
    else:
        _show(made)


def _show(made: Report) -> None:
    from fedoptima.report.words import compare

    console = stdout()
    said = {"": compare(made.views)} if len(made.views) > 1 else made.sentences
    for sentences in said.values():
        for sentence in sentences:
            console.print(Text(sentence))
    if made.advice is not None:
        console.print()
        for paragraph in made.advice.paragraphs():
            console.print(Text(paragraph))
    console.print(f"\n{made.path} ({megabytes(made.nbytes)})", soft_wrap=True)


class _Progress:
    """A line that is written over on a terminal, else now and then a line; all on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = stderr()
        self._quiet = quiet
        self._cadence = Cadence()
        self._status = self._console.status("") if shows_live(self._console) else None

    def __enter__(self) -> Progress:
        if self._status and not self._quiet:
            self._status.start()
        return self._tell

    def __exit__(self, *error: object) -> None:
        if self._status:
            self._status.stop()

    def _tell(self, what: str, records: int) -> None:
        if self._quiet:
            return
        line = f"{what}: {records:,} records" if records else what
        if self._status:
            self._status.update(Text(line))
        elif self._cadence.due(what):
            self._console.print(line, soft_wrap=True)
