"""What is seen while a run goes on: a live display on a terminal, now and then a line elsewhere.

All of it goes to stderr. A view takes the two callbacks of `fedoptima.api.simulate`: ``reading``
while data is read, ``training`` while the run goes on.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedoptima.cli.console import stderr
from fedoptima.cli.wording import accuracies, brief, duration, percent

if TYPE_CHECKING:
    from fedoptima.api.run import Watch
    from fedoptima.config.schema import Recipe

_BAR = 30  # columns
_REFRESH = 0.25  # seconds between two pictures of the live display
_LINE = 1.0  # seconds at least between two lines...
_SILENCE = 10.0  # ...and at most, evaluation or not


class View(Protocol):
    def __enter__(self) -> View: ...
    def __exit__(self, *error: object) -> None: ...
    def reading(self, what: str, done: int, total: int) -> None: ...
    def training(self, watch: Watch) -> None: ...


def view_of(recipe: Recipe, *, quiet: bool, folder: Path | None = None) -> View:
    """With a folder it is named first: a run that is killed can be found and gone on with."""
    if quiet:
        return Silent()
    console = stderr()
    if folder is not None:
        title = f"{recipe.name}: {recipe.method.name}, seed {recipe.seed}, in {folder}"
        console.print(title, soft_wrap=True)
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveView(recipe) if live else LineView(recipe)


class Silent:
    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def reading(self, what: str, done: int, total: int) -> None:
        pass

    def training(self, watch: Watch) -> None:
        pass


class LineView(Silent):
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._speed = _Speed()
        self._read = ""
        self._points = 0
        self._last = time.monotonic()

    def reading(self, what: str, done: int, total: int) -> None:
        if what != self._read:
            self._read = what
            self._print(f"reading {what}")

    def training(self, watch: Watch) -> None:
        since = time.monotonic() - self._last
        fresh = len(watch.course.points) > self._points
        if since < _LINE or not (fresh or since >= _SILENCE):
            return
        self._last = time.monotonic()
        self._points = len(watch.course.points)
        state = State.of(watch, self._recipe, self._speed)
        accuracy = f"accuracy {accuracies(state.accuracy, state.best)}"
        busy = f"busy: server {percent(state.server)}, devices {percent(state.devices)}"
        self._print(f"{duration(state.seconds)}, {state.done}, {accuracy}, {busy}")

    def _print(self, line: str) -> None:
        console = stderr()
        console.print(line, soft_wrap=True)
        console.file.flush()


class LiveView(Silent):
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._speed = _Speed()
        self._live = Live(console=stderr(), auto_refresh=False, transient=True)
        self._stack = ExitStack()
        self._last = 0.0

    def __enter__(self) -> LiveView:
        self._stack.enter_context(self._live)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def reading(self, what: str, done: int, total: int) -> None:
        if self._is_time() or done == total:
            share = done / total if total else None
            self._live.update(_row(f"reading {what}", share, f"{done:,} of {total:,}"))
            self._live.refresh()

    def training(self, watch: Watch) -> None:
        if self._is_time():
            self._live.update(_picture(State.of(watch, self._recipe, self._speed)))
            self._live.refresh()

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._last < _REFRESH:
            return False
        self._last = now
        return True


def _picture(state: State) -> RenderableType:
    accuracy = f"accuracy {accuracies(state.accuracy, state.best)}"
    busy = f"busy: server {percent(state.server)}, devices {percent(state.devices)}"
    return Group(
        _row("training", state.share, state.done),
        Text(f"virtual time {duration(state.seconds)}   {accuracy}"),
        Text(f"{busy}   {brief(state.events_per_second)} events/s", style="dim"),
    )


def _row(what: str, share: float | None, done: str) -> RenderableType:
    """Without a share the bar only shows that something moves."""
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=share or 0.0, width=_BAR, pulse=share is None)
    row.add_row(what, bar, done)
    return row


class _Speed:
    """Events per second since the first look; a resumed run has had some before."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None

    def of(self, events: int) -> float:
        now = time.monotonic()
        if self._began is None:
            self._began = (now, events)
        seconds, before = now - self._began[0], self._began[1]
        return (events - before) / seconds if seconds else 0.0


@dataclass(frozen=True)
class State:
    """How far a run is, in the figures that are shown."""

    seconds: float
    done: str
    share: float | None  # of the budget; None: only accuracy ends this run
    accuracy: float | None
    best: float | None
    server: float
    devices: float
    events_per_second: float

    @classmethod
    def of(cls, watch: Watch, recipe: Recipe, speed: _Speed) -> State:
        from fedoptima.core.types import SERVER

        simulation, stop = watch.simulation, recipe.stop
        progress = simulation.server.machine.progress
        budgeted = stop.epochs or stop.rounds or stop.hours
        usage = dict(watch.usage.usage())
        server = usage.pop(SERVER).utilisation
        measured = [p.accuracy for p in watch.course.points if p.accuracy is not None]
        done = f"{progress.epochs:.1f}{f' of {stop.epochs:g}' if stop.epochs else ''} epochs"
        if stop.rounds:
            done += f", {progress.rounds} of {stop.rounds} rounds"
        return cls(
            seconds=max(0.0, simulation.now - watch.course.began),
            done=done,
            share=progress.share(simulation.now) if budgeted else None,
            accuracy=measured[-1] if measured else None,
            best=max(measured, default=None),
            server=server,
            devices=sum(use.utilisation for use in usage.values()) / max(1, len(usage)),
            events_per_second=speed.of(simulation.events),
        )
