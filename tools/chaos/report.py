"""What a campaign has shown, as a table, and in docs/reliability.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from fedoptima.version import __version__
from tools.chaos.campaign import Outcome
from tools.chaos.ledger import Sums
from tools.chaos.play import Played
from tools.chaos.script import Kind

BEGIN, END = "<!-- chaos: begin -->", "<!-- chaos: end -->"
_HEAD = ("what went wrong", "tries", "survived", "worst case", "work lost")

Row = tuple[str, ...]


def rows(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """A fault is survived if its run went on, and everything agreed at the end."""
    for kind in Kind:
        found = [
            (outcome, number, one)
            for outcome in outcomes
            for number, one in enumerate(outcome.played)
            if one.fault.kind is kind
        ]
        tries = sum(f.kind is kind for o in outcomes for step in o.script.steps for f in step)
        survived = sum(not outcome.problems for outcome, *_ in found)
        worst = max((one.seconds for *_, one in found), default=None)
        yield (
            str(kind),
            f"{tries}",
            f"{survived}",
            "-" if worst is None else f"{worst:.0f} s",
            _lost([(outcome.lost.get(number, 0), one) for outcome, number, one in found]),
        )


def _lost(found: list[tuple[int, Played]]) -> str:
    if not found:
        return "-"
    rounds, undone = sum(n for n, _ in found), sum(one.merges_undone for _, one in found)
    most = max(n for n, _ in found)
    merges = f", {undone} merges undone" if undone else ""
    return f"{rounds} rounds, {most} at most{merges}" if rounds else f"none{merges}"


def sums(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    for outcome in outcomes:
        if outcome.ledger is not None:
            batches, updates = outcome.ledger.batches, outcome.ledger.updates
            yield (
                f"{outcome.script.method}, {outcome.script.seed}",
                *(_figures(batches), _figures(updates)),
                *(f"{outcome.accuracy:.1%}", f"{outcome.calm:.1%}"),
            )


def _figures(sums: Sums) -> str:
    if not sums.sent:
        return "-"
    return f"{sums.sent} / {sums.received} / {sums.used}"


def record(file: Path, outcomes: Sequence[Outcome], command: str) -> None:
    """Replace what is between the marks of a Markdown file."""
    text = file.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    if not (rest and after):
        raise SystemExit(f"{file}: has no lines {BEGIN} and {END} to write between")
    file.write_text(f"{before}{BEGIN}\n{_markdown(outcomes, command)}\n{END}{after}", "utf-8")


def summary(outcomes: Sequence[Outcome]) -> str:
    faults = sum(len(step) for o in outcomes for step in o.script.steps)
    failed = sum(bool(o.problems) for o in outcomes)
    held = f"{failed} went wrong" if failed else "all survived, all sums agree"
    return f"{len(outcomes)} runs with {faults} faults: {held}"


def _markdown(outcomes: Sequence[Outcome], command: str) -> str:
    origin = (
        f"`{command}`, {datetime.now(UTC).date().isoformat()}, fedoptima {__version__}, Python "
        f"{platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores "
        f"({platform.machine()}; {os.getloadavg()[2]:.0f} processes wanted them in the last "
        f"quarter of an hour). {summary(outcomes)}."
    )
    told = (
        *("method, seed", "batches: sent / received / used", "updates: sent / received / merged"),
        *("accuracy", "without faults"),
    )
    return "\n".join(
        [origin, "", *_table(_HEAD, rows(outcomes)), "", *_table(told, sums(outcomes))]
    )


def _table(head: Row, body: Iterator[Row]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in body:
        yield f"| {' | '.join(row)} |"
