"""What a server's run leaves in its trace, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from fedoptima.core.events import DiskFailing, DiskWorks, Evaluated
from fedoptima.core.types import SERVER
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_run import RunHooks, ServerWatch, serve_run
from fedoptima.experiments.server_setup import prepare_server
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.runtime.address import Address
from fedoptima.trace.writer import read_lines
from tests.support.network import DEADLINE, tiny_recipe


class Story:
    """A server without devices, and what is told beside it; ended when ``over`` is set."""

    def __init__(self, folder: Path, tell: Callable[[Story], Awaitable[None]]) -> None:
        self._folder = folder
        self._tell = tell
        self._watch: ServerWatch | None = None
        self.over = False

    @property
    def watch(self) -> ServerWatch:
        assert self._watch is not None
        return self._watch

    def run(self) -> str:
        """The trace, if the run comes to no end by itself."""
        setup = prepare_server(tiny_recipe("fl"))
        directory = RunDirectory.create(self._folder, setup.describe())
        hooks = RunHooks(
            observe=self._observe, interrupted=lambda: self.over, background=self._beside
        )
        with pytest.raises((Interrupted, TypeError)):
            serve_run(setup, directory, hooks=hooks)
        return "".join(read_lines(directory.trace))

    def _observe(self, watch: ServerWatch) -> None:
        self._watch = watch

    async def _beside(self, _: Address) -> None:
        async with asyncio.timeout(DEADLINE):
            while self._watch is None:
                await asyncio.sleep(0.01)
            await self._tell(self)
        await asyncio.Event().wait()


def test_what_is_noted_while_the_last_connections_are_closed_is_in_the_trace(
    tmp_path: Path,
) -> None:
    async def tell(story: Story) -> None:
        node = story.watch.node
        story.over = True
        await asyncio.wait({node.outcome})
        node.note(DiskFailing("no room"))
        while SERVER not in story.watch.live.fleet.failing:  # until the queue is worked off
            await asyncio.sleep(0)
        node.note(DiskWorks())

    trace = Story(tmp_path / "run", tell).run()
    assert "no room" in trace
    assert "DiskWorks" in trace


def test_records_that_an_account_fails_on_are_in_the_trace(tmp_path: Path) -> None:
    async def tell(story: Story) -> None:
        story.watch.node.note(DiskFailing("the one before"))
        story.watch.node.note(cast(Any, Evaluated(0, cast(Any, None))))  # no account expects it

    trace = Story(tmp_path / "run", tell).run()
    assert "the one before" in trace
    assert "Evaluated" in trace
