"""Progress of commands that go through a run's records: trace, report and replay."""

from __future__ import annotations

from rich.text import Text

from fedoptima.cli.console import stderr
from fedoptima.cli.views.progress import Cadence, shows_live
from fedoptima.trace.record import RecordProgress


class RecordCounter:
    """A line that is written over on a terminal, else now and then a line; all on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = stderr()
        self._quiet = quiet
        self._cadence = Cadence()
        self._status = self._console.status("") if shows_live(self._console) else None

    def __enter__(self) -> RecordProgress:
        if self._status and not self._quiet:
            self._status.start()
        return self._show

    def __exit__(self, *error: object) -> None:
        if self._status:
            self._status.stop()

    def _show(self, what: str, records: int) -> None:
        if self._quiet:
            return
        line = f"{what}: {records:,} records" if records else what
        if self._status:
            self._status.update(Text(line))
        elif self._cadence.due(what):
            self._console.print(line, soft_wrap=True)
