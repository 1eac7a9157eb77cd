"""When a server keeps a checkpoint, and what it does if it cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fedoptima.core.jobs import Merge
from fedoptima.core.messages import GlobalModel
from fedoptima.engine.checkpoint import newest_checkpoint
from fedoptima.engine.payloads import unpack
from fedoptima.experiments.server_setup import ServerSetup
from tests.support.stage import JOIN, Stage, answer_to, same, sent


def test_a_checkpoint_holds_the_timers_that_its_own_event_sets(
    tmp_path: Path, setup: ServerSetup
) -> None:
    """The core believes that they run: one that is lost never fires."""

    async def story() -> None:
        stage = Stage(tmp_path, setup, keeping=True)
        await stage.begin()  # the plan's end sets the time limit, and is the first to be kept
        await stage.end()
        found, _ = stage.kept(setup)
        assert found.core.planned
        assert set(found.timers) == {"time limit"}

    asyncio.run(story())


def test_a_checkpoint_is_of_the_moment_before_the_job_that_follows(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = await stage.begin()
        (model,) = sent(session, GlobalModel)
        stage.checkpointer.wanted = True
        stage.node.receive(session, answer_to(model))
        stage.checkpointer.wanted = False
        await stage.until(lambda: len(sent(session, GlobalModel)) == 2)
        await stage.end()
        found, engine = stage.kept(setup)
        assert found.running is not None
        assert isinstance(found.running.job, Merge)
        assert isinstance(model, GlobalModel)
        before = unpack(model.data)
        assert same(engine.export(), before)
        assert not same(stage.engine.export(), before)

    asyncio.run(story())


def test_a_model_that_is_not_finite_is_not_written_and_the_checkpoint_before_stays(
    tmp_path: Path, setup: ServerSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup, keeping=True)
        session = await stage.begin()
        await stage.until(lambda: newest_checkpoint(tmp_path / "checkpoints"))
        before = newest_checkpoint(tmp_path / "checkpoints")
        stage.engine._global["0.0.bias"].fill_(float("nan"))
        stage.node.closed(session)  # an event, and with it a checkpoint
        await stage.until(lambda: "could be written: the model is not finite" in caplog.text)
        await stage.end()
        assert newest_checkpoint(tmp_path / "checkpoints") == before

    asyncio.run(story())


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, setup: ServerSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        (tmp_path / "checkpoints").write_text("in the way, as a full disk would be")
        stage = Stage(tmp_path, setup, keeping=True)
        session = await stage.begin()
        await stage.until(lambda: "a checkpoint cannot be written" in caplog.text)
        (tmp_path / "checkpoints").unlink()  # and there is room again
        stage.node.receive(session, answer_to(sent(session, GlobalModel)[0]))
        await stage.until(lambda: len(sent(session, GlobalModel)) == 2)
        assert not stage.node.outcome.done()
        await stage.end()
        assert stage.kept(setup)[0].core.planned
        assert caplog.text.count("a checkpoint cannot be written") == 1
        assert caplog.text.count("everything is written again") == 1

    asyncio.run(story())


def test_a_checkpoint_that_cannot_even_begin_ends_the_run_and_not_in_a_wait(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup, keeping=True)
        stage.node.observers.clear()
        await stage.trace.close()  # what cannot be marked
        stage.connect()
        stage.node.receive(next(iter(stage.node.sessions.values())), JOIN)
        await stage.until(stage.node.outcome.done)
        assert isinstance(stage.node.outcome.exception(), RuntimeError)
        await stage.node.shut_down()
        stage.compute.close()

    asyncio.run(story())
