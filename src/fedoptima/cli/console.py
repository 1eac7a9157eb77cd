"""Where output goes. Consoles are created for every use, so that redirections are respected."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def stdout() -> Console:
    """For results. Nothing printed is taken for markup: names and paths may hold brackets."""
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=False)


def stderr() -> Console:
    """For everything that is not the result: progress, warnings, errors."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def say(console: Console, line: str) -> None:
    """Flushed: a line of progress is wanted now, also where the output is a file."""
    console.print(line, soft_wrap=True)
    console.file.flush()


def plain_table(*columns: str, left: int = 1) -> Table:
    """Columns without lines; the first ``left`` hold text, the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        is_text = index < left
        table.add_column(
            column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text
        )
    return table
