"""What a campaign found, as rows of a table and in Markdown."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.fuzzing.campaign import Tally
from fedoptima.fuzzing.script import OF_SERVER, Kind
from fedoptima.version import __version__

BEGIN, END = "<!-- fuzz: begin -->", "<!-- fuzz: end -->"


def rows(tally: Tally) -> Iterator[tuple[str, str, str, str]]:
    for kind in Kind:
        tries, survived = tally.tries[kind], tally.survived[kind]
        yield (str(kind), f"{tries:,}", f"{survived:,}", _worst(kind, tally))


def _worst(kind: Kind, tally: Tally) -> str:
    """Until the device trained again, connected; after a crash also what was undone."""
    seconds = tally.worst.get(kind)
    if seconds is None:
        return "-"
    undone = f", {tally.merges_lost:,} merges" if kind in OF_SERVER else ""
    return f"{seconds:.0f} s{undone}"


def summary(tally: Tally) -> str:
    faults = sum(tally.tries.values())
    methods = ", ".join(f"{name} {count:,}" for name, count in sorted(tally.runs.items()))
    held = f"{len(tally.failures):,} broke a law" if tally.failures else "every law held"
    return (
        f"{tally.seeds:,} scripts with {faults:,} faults and {tally.events:,} events: {held} "
        f"({methods})"
    )


def record(file: Path, tally: Tally, command: str) -> None:
    """Replace what is between the marks of a Markdown file."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--record {file}: cannot be read ({error.strerror})") from error
    if BEGIN not in text or END not in text:
        raise ConfigError(f"--record {file}: has no lines {BEGIN} and {END} to write between")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    file.write_text(f"{before}{BEGIN}\n{_markdown(tally, command)}\n{END}{after}", encoding="utf-8")


def _markdown(tally: Tally, command: str) -> str:
    day = datetime.now(UTC).date().isoformat()
    lines = [
        f"`{command}`, {day}, fedoptima {__version__}, Python {platform.python_version()}, "
        f"{platform.machine()} CPU. {summary(tally)}.",
        "",
        "| what went wrong | tries | survived | worst case |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows(tally)),
    ]
    return "\n".join(lines)
