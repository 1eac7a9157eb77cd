"""What is seen while a run over the network goes on: a table of all nodes, or lines off a terminal.

All of it goes to stderr. Log lines on the same console come above the table, not through it.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live

from fedoptima.cli.logs import DeviceErrors, attached
from fedoptima.cli.views.fleet_state import FleetState
from fedoptima.cli.views.fleet_table import picture
from fedoptima.display.console import say
from fedoptima.display.progress import Cadence, Refresh, reading_bar, shows_live, title

if TYPE_CHECKING:
    from rich.console import Console

    from fedoptima.config.schema import Recipe
    from fedoptima.experiments.server_run import ServerWatch
    from fedoptima.runtime.address import Address


def fleet_view(console: Console, recipe: Recipe, folder: Path, *, quiet: bool) -> FleetView:
    name = f"{title(recipe)}, in {folder}"
    if quiet:
        return FleetView(console)
    if shows_live(console):
        return FleetTable(console, name)
    return FleetLines(console, name)


class FleetView:
    """Shows nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._device_errors = DeviceErrors()
        self._stack = ExitStack()

    def __enter__(self) -> FleetView:
        self._stack.enter_context(attached(self._device_errors))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def reading(self, what: str, done: int, total: int) -> None:
        """While data is read."""

    def ready(self, address: Address) -> None:
        """Devices can come."""

    def observe(self, watch: ServerWatch) -> None:
        """A few times a second."""


class FleetLines(FleetView):
    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console)
        self._title = title
        self._cadence = Cadence()
        self._read = ""

    def __enter__(self) -> FleetLines:
        super().__enter__()
        say(self._console, self._title)
        return self

    def reading(self, what: str, done: int, total: int) -> None:
        if what != self._read:
            self._read = what
            say(self._console, what)

    def observe(self, watch: ServerWatch) -> None:
        fleet = watch.live.fleet
        evaluations = max(map(len, fleet.measured.values()))
        news = (evaluations, fleet.planning, len(watch.node.machine.members))
        if self._cadence.due(news):
            say(self._console, FleetState.of(watch, self._device_errors.fresh()).line())


class FleetTable(FleetView):
    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console)
        self._title = title
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._is_time = Refresh()

    def __enter__(self) -> FleetTable:
        super().__enter__()
        self._stack.enter_context(self._live)
        return self

    def reading(self, what: str, done: int, total: int) -> None:
        if self._is_time() or done == total:
            self._live.update(reading_bar(what, done, total), refresh=True)

    def ready(self, address: Address) -> None:
        self._title += f", on {address}"

    def observe(self, watch: ServerWatch) -> None:
        if self._is_time():
            state = FleetState.of(watch, self._device_errors.fresh())
            height = self._console.height
            self._live.update(picture(self._title, state, height=height), refresh=True)
