"""A server that is interrupted stops where it can go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fedoptima.core.effects import Effect, Halt, Send
from fedoptima.core.messages import GlobalModel, Stop
from fedoptima.experiments.server_setup import ServerSetup, prepare_server
from fedoptima.runtime.server.server_node import INTERRUPTED
from tests.support.network import tiny_recipe
from tests.support.stage import PatientEngine, Stage, answer_to, same, sent


def test_an_idle_server_stops_at_once(tmp_path: Path, setup: ServerSetup) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = await stage.begin()
        stage.node.interrupt()
        assert stage.node.outcome.result() == Halt(INTERRUPTED)
        assert sent(session, Stop) == [Stop(INTERRUPTED)]
        await stage.end()
        found, _ = stage.kept(setup)
        assert found.core.planned
        assert found.running is None

    asyncio.run(story())


def test_a_server_stops_when_its_job_is_done_and_keeps_what_is_next(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = await stage.begin()
        stage.node.receive(session, answer_to(sent(session, GlobalModel)[0]))
        recorded: list[Effect] = []
        stage.node.observers.append(lambda record: recorded.extend(record.effects))
        stage.node.interrupt()
        assert not stage.node.outcome.done()
        await stage.until(stage.node.outcome.done)
        said = [e.message for e in recorded if isinstance(e, Send)]
        assert len(said) == 1
        assert sent(session, GlobalModel)[1:] == said, "what is on the record was sent"
        assert sent(session, Stop) == [Stop(INTERRUPTED)]
        await stage.end()
        found, engine = stage.kept(setup)
        assert found.core.version == 1
        assert same(engine.export(), stage.engine.export())

    asyncio.run(story())


def test_a_server_stopped_in_its_last_evaluation_goes_on_to_the_end(tmp_path: Path) -> None:
    setup = prepare_server(tiny_recipe("fl", deploy={"devices": 1}, stop={"rounds": 1}))

    async def story() -> None:
        PatientEngine.go.clear()
        stage = Stage(tmp_path, setup, engine=PatientEngine(setup.workload))
        session = await stage.begin()
        stage.node.receive(session, answer_to(sent(session, GlobalModel)[0]))
        await stage.until(lambda: stage.node.machine.progress.waiting)
        stage.node.interrupt()
        await stage.until(stage.node.outcome.done)
        await stage.end()
        PatientEngine.go.set()

        found, engine = stage.kept(setup)
        again = Stage(tmp_path, setup, restored=found, engine=engine)
        again.node.resume_from(found, found.core.progress.rule)
        await again.until(again.node.outcome.done)
        assert again.node.outcome.result() == Halt("1 round done")
        assert again.node.machine.sessions == {}
        await again.end()

    asyncio.run(story())
