"""What happened in a run, in brief and as files for other programs: `trace("runs/a", csv="a.csv")`.

One pass over the trace, however many files are made of it.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from csv import writer as csv_writer
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.overview import Overview, OverviewAccount
from fedoptima.analysis.spans import Span, SpanAccount
from fedoptima.core.errors import ConfigError
from fedoptima.reporting.perfetto import PerfettoWriter
from fedoptima.reporting.report import find_traces
from fedoptima.trace.reader import read_description, read_trace

COLUMNS = ("node", "kind", "what", "start", "end", "peer", "bytes")
_DIGITS = 9  # of a second: below that, times are rounding
_PROGRESS_EVERY = 5000  # records
_COMPRESSION = 6


@dataclass(frozen=True)
class Traced:
    title: str
    overview: Overview
    perfetto_events: int | None  # written; None: not asked for
    csv_lines: int | None

    def to_json(self) -> str:
        written = {"perfetto_events": self.perfetto_events, "csv_lines": self.csv_lines}
        return json.dumps({"title": self.title, **self.overview.plain(), **written}, indent=1)


def trace(
    run: str | Path,
    *,
    perfetto: str | Path | None = None,
    csv: str | Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Traced:
    """``run``: a run's folder or its trace, finished or not. Files named .gz are compressed.

    ``progress`` is called now and then with the number of records read so far.
    """
    path = _one_trace(Path(run))
    targets = [Path(target) for target in (perfetto, csv) if target is not None]
    _check_places(path, targets)
    description = read_description(path)
    accounts = Accounts()
    account, spans = OverviewAccount(accounts), SpanAccount(accounts.usage)
    with ExitStack() as files:
        viewer = table = None
        if perfetto is not None:
            file = files.enter_context(_whole_file(Path(perfetto)))
            title, cap = description.title, description.activation_cap
            viewer = PerfettoWriter(file, title, accounts.server_state, cap=cap)
        if csv is not None:
            table = CsvWriter(files.enter_context(_whole_file(Path(csv))))
        for count, record in enumerate(read_trace(path), start=1):
            accounts.observe(record)
            final = spans.observe(record)
            account.observe(record, final)
            if viewer:
                viewer.observe(record, final)
            if table:
                table.add(final)
            if count % _PROGRESS_EVERY == 0:
                progress(count)
        final = spans.finish()
        account.add(final)
        if viewer:
            viewer.add(final)
            viewer.close()
        if table:
            table.add(final)
    return Traced(
        description.title,
        account.overview(),
        viewer.events if viewer else None,
        table.lines if table else None,
    )


class CsvWriter:
    """One line for each span, in the order in which they became final."""

    def __init__(self, file: TextIO) -> None:
        self.lines = 0  # without the one of the columns' names
        self._table = csv_writer(file, lineterminator="\n")
        self._table.writerow(COLUMNS)

    def add(self, spans: Iterable[Span]) -> None:
        for node, kind, start, end, what, peer, nbytes in spans:
            times = round(start, _DIGITS), round(end, _DIGITS)
            self._table.writerow((node, kind.value, what, *times, peer, nbytes or ""))
            self.lines += 1


def _one_trace(run: Path) -> Path:
    if not run.exists():
        raise ConfigError(f"{run}: no such folder or file; give the folder of a run, or its trace")
    found = find_traces([run])
    if len(found) > 1:
        raise ConfigError(
            f"{run}: {len(found)} runs are here; give one of them, e.g. {found[0].parent}"
        )
    return found[0]


# ---- files -----------------------------------------------------------------------------------


def _check_places(trace: Path, targets: list[Path]) -> None:
    """Before a trace is read for minutes."""
    if len({target.resolve() for target in targets}) < len(targets):
        raise ConfigError(f"{targets[0]}: two files cannot have one name; choose another for one")
    for target in targets:
        if os.path.isdir(target):  # False, too, for a name that no file can have
            raise ConfigError(f"{target}: is a folder; give the name of a file in it")
        if not target.parent.is_dir():
            raise ConfigError(
                f"{target}: there is no folder {target.parent}; make it, or choose another"
            )
        if target.resolve() == trace.resolve():
            raise ConfigError(f"{target}: is the trace itself; choose another file")


@contextmanager
def _whole_file(path: Path) -> Iterator[TextIO]:
    """Under a temporary name until it is complete: a file is whole, or not there."""
    temporary = path.with_name(f"{path.name}.part")
    try:
        with _opened(temporary, compressed=path.suffix == ".gz") as file:
            yield file
        temporary.rename(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror or error}); choose another file"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _opened(path: Path, *, compressed: bool) -> TextIO:
    if compressed:
        return gzip.open(path, "wt", compresslevel=_COMPRESSION, encoding="utf-8", newline="")
    return path.open("w", encoding="utf-8", newline="")
