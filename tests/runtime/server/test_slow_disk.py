"""A disk that hangs in fsync, for as long as the test wants: the event loop must not notice."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from threading import Event

import pytest

from fedoptima.core.messages import GlobalModel
from fedoptima.experiments.server_setup import ServerSetup, prepare_server
from tests.support.network import DEADLINE, tiny_recipe
from tests.support.stage import Stage, answer_to, sent


@pytest.fixture(scope="module")
def setup() -> ServerSetup:
    return prepare_server(tiny_recipe("fl", deploy={"devices": 1}, stop={"rounds": 50}))


def test_training_goes_on_while_the_disk_hangs(
    tmp_path: Path, setup: ServerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, go_on, real = Event(), Event(), os.fsync

    def fsync(descriptor: int) -> None:
        hangs.set()
        assert go_on.wait(DEADLINE)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)

    async def story() -> None:
        stage = Stage(tmp_path, setup, keeping=True)
        session = await stage.begin()
        await stage.until(hangs.is_set)  # a checkpoint was due with the first model
        for number in (1, 2, 3):
            stage.node.receive(session, answer_to(sent(session, GlobalModel)[-1], number))
            await stage.until(lambda wanted=number: len(sent(session, GlobalModel)) > wanted)  # type: ignore[misc]
        assert not list((tmp_path / "checkpoints").glob("[0-9]*")), "it hangs to this moment"
        go_on.set()
        await stage.end()
        assert stage.kept(setup)[0].core.planned

    asyncio.run(story())
