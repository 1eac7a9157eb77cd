"""What is seen while a run over the network goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fedoptima.cli.console import stderr
from fedoptima.cli.wording import accuracies, duration, percent

if TYPE_CHECKING:
    from fedoptima.api.server_run import ServerWatch
    from fedoptima.config.schema import Recipe
    from fedoptima.runtime.address import Address

_LINE = 5.0


def fleet_view(recipe: Recipe, folder: Path, *, quiet: bool) -> FleetLines:
    return FleetLines(recipe, folder, quiet)


class FleetLines:
    def __init__(self, recipe: Recipe, folder: Path, quiet: bool) -> None:
        self._recipe, self._folder, self._quiet = recipe, folder, quiet
        self._last = time.monotonic()

    def __enter__(self) -> FleetLines:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def reading(self, what: str, done: int, total: int) -> None:
        pass

    def ready(self, address: Address) -> None:
        if not self._quiet:
            stderr().print(f"waiting for devices on {address}; results in {self._folder}")

    def observe(self, watch: ServerWatch) -> None:
        if self._quiet or time.monotonic() - self._last < _LINE:
            return
        self._last = time.monotonic()
        points = [p.accuracy for p in watch.live.accounts.course.points if p.accuracy is not None]
        usage = dict(watch.live.accounts.usage.usage())
        text = ", ".join(f"{node} {percent(use.utilisation)}" for node, use in usage.items())
        epochs = watch.node.machine.progress.epochs
        now = duration(watch.node.clock())
        last = points[-1] if points else None
        stderr().print(
            f"{now}, {epochs:.1f} epochs, accuracy {accuracies(last, max(points, default=None))}, "
            f"busy: {text}",
            soft_wrap=True,
        )
