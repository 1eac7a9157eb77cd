"""Progress of many runs side by side: a bar for each on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedoptima.analysis.formatting import duration
from fedoptima.display.console import say, stderr
from fedoptima.display.progress import Refresh, shows_live
from fedoptima.display.silent import RunState, SilentPool

_BAR = 20  # columns
_SILENCE = 10.0  # seconds at most between two lines about a run that goes on
_STYLES = {"done": "green", "failed": "red", "stopped": "yellow", "waiting": "dim"}


def pool_view(title: str, *, quiet: bool) -> SilentPool:
    """``title`` is said when the first run begins, and not before what was asked for is checked."""
    if quiet:
        return SilentPool()
    console = stderr()
    return PoolBars(title) if shows_live(console) else PoolLines(title)


class PoolLines(SilentPool):
    """A line when a run begins and when it ends, and now and then while it goes on."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._phases: dict[str, str] = {}
        self._said: dict[str, float] = {}

    def show(self, states: Sequence[RunState]) -> None:
        if self._title:
            say(stderr(), self._title)
            self._title = ""
        for state in states:
            name, now = name_of(state), time.monotonic()
            before = self._phases.get(name, "waiting")
            turned = state.phase != before and (state.over or state.phase == "starting")
            silent = now - self._said.get(name, now) >= _SILENCE and not state.over
            self._phases[name] = state.phase
            if turned or silent:
                self._said[name] = now
                say(stderr(), f"{name}: {progress_of(state)}")


class PoolBars(SilentPool):
    def __init__(self, title: str) -> None:
        self._title = title
        self._console = stderr()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._is_time = Refresh()

    def __enter__(self) -> PoolBars:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, states: Sequence[RunState]) -> None:
        if self._title:
            say(self._console, self._title)
            self._title = ""
        if self._is_time() or all(state.over for state in states):
            self._live.update(picture(states, self._console.height), refresh=True)


def picture(states: Sequence[RunState], height: int) -> RenderableType:
    """One bar per run; where they are too many for the screen, only those that go on."""
    over = sum(state.over for state in states)
    grid = Table.grid(padding=(0, 1))
    shown = states
    if len(states) >= height:
        shown = [state for state in states if not state.over and state.phase != "waiting"]
    for state in shown[: max(1, height - 2)]:
        style = _STYLES.get(state.phase, "")
        pulse = state.share is None and not state.over and state.phase != "waiting"
        bar = ProgressBar(total=1.0, completed=state.share or 0.0, width=_BAR, pulse=pulse)
        grid.add_row(name_of(state), bar, Text(progress_of(state, brief=True), style=style))
    grid.add_row(Text(f"{over} of {len(states)} runs", style="bold"))
    return grid


def name_of(state: RunState) -> str:
    return f"{state.label} (seed {state.seed})"


def progress_of(state: RunState, *, brief: bool = False) -> str:
    """Brief: what fits beside a bar."""
    if state.phase == "failed":
        return "failed" if brief else f"failed: {state.error}"
    if not state.epochs:
        return state.phase
    figures = [f"{state.epochs:.1f} epochs", duration(state.seconds)]
    if state.quality is not None:
        figures.append(state.quality.short)
    ended = f"{state.phase}: " if state.over and not brief else ""
    return ended + ", ".join(figures)
