"""``fedoptima runs``: what there is in a folder of runs, and how each is doing."""

from __future__ import annotations

import csv
import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import fedoptima.cli.options as options
from fedoptima.analysis.curve import USUAL
from fedoptima.analysis.formatting import roughly
from fedoptima.analysis.quality import Quality, quality
from fedoptima.core.errors import ConfigError
from fedoptima.display.console import plain_table, stdout

_DEPTH = 3  # folders: runs/, a sweep in it, its runs
_UNBROKEN = 10_000  # characters of a line that another program reads: a path stays whole


class State(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


_STYLES = {State.RUNNING: "green", State.INTERRUPTED: "yellow", State.FAILED: "red"}


@dataclass(frozen=True)
class RunRow:
    name: str
    method: str
    seed: object
    state: State
    epochs: float | None
    accuracy: float | None
    loss: float | None
    seconds_ago: float  # since something was written into it
    path: str
    failure: str = ""

    @property
    def quality(self) -> Quality | None:
        figures = {"accuracy": self.accuracy, "loss": self.loss}
        return quality({name: [value] for name, value in figures.items() if value is not None})


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with runs, at any depth to three.")
    ] = Path("runs"),
    as_json: options.AsJSON = False,
) -> None:
    """List the runs in a folder: method, state, epochs, accuracy or loss, age."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give the one that your runs are in")
    rows = sorted(filter(None, map(row_of, _folders(folder))), key=lambda row: row.seconds_ago)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=1))
        return
    console = stdout()
    if not rows:
        console.print(f"no runs in {folder}; for example: fedoptima simulate RECIPE")
        return
    table = plain_table("name", "method", "state", "epochs", "accuracy", "age", "path", left=3)
    for column in table.columns:
        column.no_wrap = True
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    for row in rows:
        table.add_row(
            Text(row.name),
            Text(row.method),
            Text(row.state, style=_STYLES.get(row.state, "")),
            "" if row.epochs is None else f"{row.epochs:.1f}",
            "" if row.quality is None else row.quality.short,
            roughly(row.seconds_ago),
            Text(row.path),
        )
    if not console.is_terminal:
        console.width = _UNBROKEN
    console.print(table)
    for row in rows:
        if row.failure:
            console.print(f"\n{row.path} failed: {row.failure}", soft_wrap=True)


def _folders(folder: Path, depth: int = _DEPTH) -> list[Path]:
    from fedoptima.trace.run_folder import RunFiles

    if RunFiles(folder).begun:
        return [folder]
    if depth == 0:
        return []
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return [found for path in inside for found in _folders(path, depth - 1)]


def row_of(path: Path) -> RunRow | None:
    """None: it is not a run's folder, or cannot be read."""
    from fedoptima.experiments.run_directory import RunDirectory

    run = RunDirectory(path)
    try:
        about = run.description
    except ConfigError:
        return None
    reached = _reached(run.metrics)
    written = max(
        (
            file.stat().st_mtime
            for file in (run.config, run.metrics, run.trace, run.summary)
            if file.exists()
        ),
        default=time.time(),
    )
    state = State.INTERRUPTED
    if run.executed:
        state = State.RUNNING
    elif run.over:
        state = State.FINISHED
    elif run.failure.is_file():
        state = State.FAILED
    failure = _said(run.failure) if state is State.FAILED else ""
    ago = max(0.0, time.time() - written)
    method = f"{about.method} (dry)" if about.dry else about.method
    return RunRow(about.name, method, about.seed, state, *reached, ago, str(path), failure)


def _said(failure: Path) -> str:
    from fedoptima.trace.plain_files import read_plain

    try:
        return read_plain(failure).strip()
    except (OSError, ValueError):  # a link, or not text: the folder may be somebody else's
        return f"{failure.name} cannot be read"


def _reached(metrics: Path) -> tuple[float | None, float | None, float | None]:
    """The last evaluation's epochs, accuracy and loss."""
    from fedoptima.trace.plain_files import open_plain

    try:
        with open_plain(metrics, newline="") as file:
            *_, last = csv.DictReader(file)
        accuracy, loss = (float(last[name]) if last[name] else None for name in USUAL)
        return float(last["epochs"]), accuracy, loss
    except (OSError, ValueError, KeyError):  # none yet, or not one of ours
        return None, None, None
