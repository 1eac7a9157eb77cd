"""A server between its core, its engine and its network: sessions, messages, breakdowns."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import TimerFired
from fedoptima.core.jobs import Job, Merge
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import ActivationBatch, GlobalModel, HandIn, Message, ModelUpdate
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.server_setup import ServerSetup, prepare_server
from fedoptima.trace.record import Record
from tests.support.network import tiny_recipe
from tests.support.stage import JOIN, NAME, Stage, answer_to, sent


def test_a_device_that_goes_while_it_is_merged_is_not_merged_twice(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = await stage.begin()
        update = answer_to(sent(session, GlobalModel)[0])
        stage.node.receive(session, update)  # the merge has begun
        stage.node.closed(session, "killed")
        again = stage.connect()  # it has never heard that its update has arrived
        stage.node.receive(again, replace(JOIN, version=0, pending=update.data.id))
        await stage.until(lambda: sent(again, GlobalModel))
        (model,) = sent(again, GlobalModel)
        assert isinstance(model, GlobalModel)
        assert model.version == 1
        assert not sent(again, HandIn)
        assert len(sent(session, GlobalModel)) == 1, "nothing is sent to the one that went"
        await stage.end()

    asyncio.run(story())


def test_a_session_has_a_higher_number_than_any_the_device_or_the_server_knows(
    tmp_path: Path, setup: ServerSetup
) -> None:
    """A server that went on from a checkpoint has forgotten some; the device has not."""

    async def story() -> None:
        stage = Stage(tmp_path, setup)
        numbers = [stage.node.next_session(NAME, last) for last in (0, 41, 7, 2**48, 2**64 - 1)]
        assert numbers == [1, 42, 43, 44, 45]  # the last two never were: it has its next number
        assert stage.node.next_session(NodeId("other"), 0) == 1
        await stage.end()

    asyncio.run(story())


def test_a_restored_server_numbers_each_devices_sessions_on(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        await stage.begin()
        stage.node.next_session(NodeId("other"), 8)
        stage.node.interrupt()
        await stage.until(lambda: stage.node.outcome.done())
        await stage.end()
        found, engine = stage.kept(setup)
        assert found.sessions == {NAME: 1, "other": 9}
        later = Stage(tmp_path, setup, restored=found, engine=engine)
        later.node.resume_from(found, found.core.progress.rule)
        assert later.node.next_session(NodeId("other"), 0) > 9
        await later.end()

    asyncio.run(story())


def test_no_session_number_is_given_twice_by_two_processes_of_a_server(
    tmp_path: Path, setup: ServerSetup
) -> None:
    """What was given since the checkpoint is forgotten with a kill; a device may be killed, too."""

    async def story() -> None:
        stage = Stage(tmp_path, setup)
        await stage.begin()
        stage.node.interrupt()
        await stage.until(lambda: stage.node.outcome.done())
        await stage.end()
        numbers = []
        for process in (1, 2):
            found, engine = stage.kept(setup)
            later = Stage(tmp_path, setup, restored=found, engine=engine, process=process)
            later.node.resume_from(found, found.core.progress.rule)
            numbers += [later.node.next_session(NAME, 0) for _ in range(3)]
            await later.end()
        assert numbers == sorted(set(numbers)), numbers

    asyncio.run(story())


@pytest.mark.parametrize(
    "name",
    ["server/0/1", "evil|x", "other/0/1", f"{NAME}/0", f"{NAME}/0/01", f"{NAME}/0/1 ", "", "/"],
)
def test_a_device_names_only_its_own_payloads(
    name: str, tmp_path: Path, setup: ServerSetup
) -> None:
    """Checkpoints keep payloads by name: another's would replace that one's, even the model."""

    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = await stage.begin()
        payload = Payload(PayloadId(name), 0)
        for message in (ModelUpdate(0, 8, payload), ActivationBatch(0, payload)):
            with pytest.raises(ProtocolViolation, match="names a payload"):
                stage.node.receive(session, message)
        with pytest.raises(ProtocolViolation, match="names a payload"):
            stage.node.receive(session, replace(JOIN, pending=PayloadId(name)))
        await stage.end()

    asyncio.run(story())


def test_what_another_thread_has_checked_is_taken_or_refused_like_anything_else(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = await stage.begin()
        right = answer_to(sent(session, GlobalModel)[0])
        wrong = replace(right, data=replace(right.data, value={}))
        alien = replace(right, data=replace(right.data, id=PayloadId("other/0/1")))
        filled: list[Message] = []
        checked = {
            message.data.id + str(number): await stage.node.prepare(
                message, lambda message=message: filled.append(message)
            )
            for number, message in enumerate((right, wrong, alien))
        }
        assert filled == [right, wrong, alien]
        first, second, third = checked.values()
        with pytest.raises(ProtocolViolation, match="is missing"):
            stage.node.receive(session, wrong, second)
        with pytest.raises(ProtocolViolation, match="names a payload"):
            stage.node.receive(session, alien, third)
        stage.node.receive(session, right, first)
        await stage.until(lambda: stage.node.machine.version == 1)
        again = stage.connect("another process")
        stage.node.receive(session, wrong, second)  # of a session that is over: nobody listens
        assert stage.node.sessions[NAME] is again
        await stage.end()

    asyncio.run(story())


def test_tensors_that_cannot_be_filled_are_a_broken_protocol(
    tmp_path: Path, setup: ServerSetup
) -> None:
    def fill() -> None:
        raise ProtocolViolation("neither true nor false")

    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = await stage.begin()
        update = answer_to(sent(session, GlobalModel)[0])
        with pytest.raises(ProtocolViolation, match="neither true nor false"):
            await stage.node.prepare(update, fill)
        await stage.end()

    asyncio.run(story())


def test_a_trace_that_cannot_be_written_ends_the_run(tmp_path: Path, setup: ServerSetup) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def observe(_: Record) -> None:
        raise full

    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = await stage.begin()
        stage.node.observers.append(observe)
        stage.node.receive(session, answer_to(sent(session, GlobalModel)[0]))
        assert stage.node.outcome.exception() is full
        await stage.end()

    asyncio.run(story())


def test_a_timer_that_nobody_set_is_a_bug_and_ends_the_run(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        stage.node.tell(TimerFired("credit"))
        assert isinstance(stage.node.outcome.exception(), KeyError)
        stage.node.tell(TimerFired("credit"))  # after the end nothing is heard
        await stage.end()

    asyncio.run(story())


def test_a_merge_is_never_done_on_the_event_loop(tmp_path: Path) -> None:
    """How long it takes depends on how many updates there are."""

    class Watched(ServerEngine):
        def execute(self, job: Job, result: PayloadId) -> Outcome:
            done.append((type(job), threading.get_ident()))
            return super().execute(job, result)

    done = list[tuple[type[Job], int]]()

    async def story() -> None:
        recipe = tiny_recipe("fl", deploy={"devices": 1}, stop={"rounds": 50})
        setup = prepare_server(recipe)
        stage = Stage(tmp_path, setup, engine=Watched(setup.workload), short_here=True)
        session = await stage.begin()
        for number in range(1, 40):
            stage.node.receive(session, answer_to(sent(session, GlobalModel)[-1], number))
            await stage.until(lambda count=number: len(sent(session, GlobalModel)) > count)
        await stage.end()

    asyncio.run(story())
    merges = [thread for kind, thread in done if issubclass(kind, Merge)]
    assert len(merges) > 30
    assert threading.get_ident() not in merges
