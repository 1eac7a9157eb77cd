"""Where output goes. Consoles are created for every use, so that redirections are respected."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table

from fedoptima.core.text import printable
from fedoptima.display.closed_terminal import let_go_of_closed_terminals

_WIDE = 10_000  # columns, more than any table has
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


class _PlainConsole(Console):
    """A terminal obeys control characters, and text may come from another machine: only those of
    rich itself get through."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                lines = segment.text.split("\n")
                text = "\n".join(printable(line, len(line)) for line in lines)
                yield Segment(text, segment.style)

    def __exit__(self, *error: Any) -> None:
        """All output goes through here. A run does not end with the terminal that shows it, nor
        because the file that its progress goes to is on a full disk."""
        try:
            super().__exit__(*error)
        except OSError as failure:
            if let_go_of_closed_terminals():
                return
            if not self.stderr or failure.errno not in NO_ROOM:
                raise
            del self._buffer[:]


def stdout() -> Console:
    """For results. Nothing printed is taken for markup: names and paths may hold brackets."""
    return _PlainConsole(highlight=False, markup=False, emoji=False, soft_wrap=False)


def stderr() -> Console:
    """For everything that is not the result: progress, warnings, errors."""
    return _PlainConsole(stderr=True, highlight=False, markup=False, emoji=False)


def say(console: Console, line: str) -> None:
    """Not folded, as what is printed for people is."""
    console.print(line, soft_wrap=True)


def plain_table(*columns: str, left: int = 1) -> Table:
    """Columns without lines; the first ``left`` hold text, the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        is_text = index < left
        table.add_column(
            column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text
        )
    return table


def print_table(console: Console, table: Table) -> None:
    """Wider than the console if numbers need it: at its edge they would lose digits, unseen."""
    wide = console.options.update_width(_WIDE)
    least, natural = console.measure(table, options=wide)
    before = console.width
    if least > before:
        console.width = natural
    console.print(Padding(table, (0, 0, 0, 0), expand=False), crop=False)
    console.width = before
