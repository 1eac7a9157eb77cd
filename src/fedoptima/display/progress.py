"""What is seen while a run goes on: a live display on a terminal, now and then a line elsewhere.

All of it goes to stderr. A view takes the two callbacks of `fedoptima.simulate`: ``reading``
while data is read, ``training`` while the run goes on. The view of a fleet at work builds on the
same parts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedoptima.analysis.formatting import brief, busy, duration, percent
from fedoptima.analysis.quality import quality_of
from fedoptima.display.console import say, stderr
from fedoptima.display.silent import SilentCounter, SilentView, Watch
from fedoptima.trace.record import RecordProgress

if TYPE_CHECKING:
    from fedoptima.analysis.idle_time import Usage
    from fedoptima.analysis.quality import Quality
    from fedoptima.config.schema import Recipe
    from fedoptima.core.progress import Progress
    from fedoptima.core.types import NodeId

_BAR = 30  # columns
_REFRESH = 0.25  # seconds between two pictures of the live display
_LINE = 1.0  # seconds at least between two lines...
_SILENCE = 10.0  # ...and at most, evaluation or not


def view_of(recipe: Recipe, *, quiet: bool, folder: Path | None = None) -> SilentView:
    """With a folder it is named first: a run that is killed can be found and resumed."""
    if quiet:
        return SilentView()
    console = stderr()
    if folder is not None:
        console.print(f"{title(recipe)}, in {folder}", soft_wrap=True)
    return LiveView(recipe) if shows_live(console) else LineView(recipe)


def title(recipe: Recipe) -> str:
    return f"{recipe.name}: {recipe.method.name}, seed {recipe.seed}"


def shows_live(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


class LineView(SilentView):
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._cadence = Cadence()
        self._read = ""

    def reading(self, what: str, done: int, total: int) -> None:
        if what != self._read:
            self._read = what
            say(stderr(), what)

    def training(self, watch: Watch) -> None:
        if self._cadence.due(len(watch.course.points)):
            say(stderr(), state_of(watch, self._recipe).line())


class Cadence:
    """When to print a line: after an evaluation, and never too often or too seldom."""

    def __init__(self) -> None:
        self._news: object = 0
        self._last = time.monotonic()

    def due(self, news: object) -> bool:
        """``news`` is another than before when there is something to tell."""
        since = time.monotonic() - self._last
        if since < _LINE or (news == self._news and since < _SILENCE):
            return False
        self._last, self._news = time.monotonic(), news
        return True


class Refresh:
    """Call it to ask whether the next picture is due."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._last < _REFRESH:
            return False
        self._last = now
        return True


class LiveView(SilentView):
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._speed = _Speed()
        self._live = Live(console=stderr(), auto_refresh=False, transient=True)
        self._is_time = Refresh()

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def reading(self, what: str, done: int, total: int) -> None:
        if self._is_time() or done == total:
            self._live.update(reading_bar(what, done, total), refresh=True)

    def training(self, watch: Watch) -> None:
        if self._is_time():
            speed = self._speed.of(watch.events)
            self._live.update(_picture(state_of(watch, self._recipe), speed), refresh=True)


def _picture(state: RunProgress, events_per_second: float) -> RenderableType:
    return Group(
        bar("training", state.share, state.done),
        Text(f"virtual time {duration(state.seconds)}   {state.quality_text}"),
        Text(f"{state.busy_text}   {brief(events_per_second)} events/s", style="dim"),
    )


def reading_bar(what: str, done: int, total: int) -> RenderableType:
    return bar(what, done / total if total else None, f"{done:,} of {total:,}")


def bar(what: str, share: float | None, done: str) -> RenderableType:
    """Without a share the bar only shows that something moves."""
    row = Table.grid(padding=(0, 1))
    length = ProgressBar(total=1.0, completed=share or 0.0, width=_BAR, pulse=share is None)
    row.add_row(what, length, done)
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
class RunProgress:
    """How far a run is, in the figures that are shown."""

    seconds: float
    done: str
    share: float | None  # of the budget; None: only accuracy ends this run
    quality: Quality | None  # None: nothing has been measured yet
    server: float | None  # busy, as a share of its time; None: it has had none yet
    devices: float | None
    reused: float | None = None  # the server's, with batches that it trains on again

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        progress: Progress,
        *,
        now: float,
        began: float,
        quality: Quality | None,
        usage: Mapping[NodeId, Usage],
    ) -> RunProgress:
        from fedoptima.analysis.idle_time import Usage
        from fedoptima.core.types import SERVER

        stop = recipe.stop
        done = f"{progress.epochs:.1f}{f' of {stop.epochs:g}' if stop.epochs else ''} epochs"
        if stop.rounds:
            done += f", {progress.rounds} of {stop.rounds} rounds"
        used = {node: use for node, use in usage.items() if use.span}
        server = used.pop(SERVER, None)
        return cls(
            seconds=max(0.0, now - began),
            done=done,
            share=progress.share(now) if not stop.only_accuracy else None,
            quality=quality,
            server=server.utilisation if server else None,
            devices=Usage.mean(used.values()).utilisation if used else None,
            reused=server.reused_share if server else None,
        )

    @property
    def quality_text(self) -> str:
        return "" if self.quality is None else str(self.quality)

    @property
    def busy_text(self) -> str:
        return f"busy: server {busy(self.server, self.reused)}, devices {percent(self.devices)}"

    def line(self) -> str:
        parts = (duration(self.seconds), self.done, self.quality_text, self.busy_text)
        return ", ".join(filter(None, parts))


def state_of(watch: Watch, recipe: Recipe) -> RunProgress:
    return RunProgress.of(
        recipe,
        watch.progress,
        now=watch.now,
        began=watch.course.began,
        quality=quality_of(watch.course.points),
        usage=watch.usage.usage(),
    )


class RecordCounter(SilentCounter):
    """For commands that go through a run's records: trace, report and replay.

    A line that is written over on a terminal, else now and then a line; all on stderr.
    """

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
