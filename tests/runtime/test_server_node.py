"""A server's node without a network: its core and engine are real, its sessions go nowhere."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import torch

from fedoptima.api.serving import ServerSetup, prepare_server
from fedoptima.core.effects import Halt
from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import Disconnected, TimerFired
from fedoptima.core.jobs import Merge
from fedoptima.core.messages import GlobalModel, HandIn, Join, Message, ModelUpdate, Stop
from fedoptima.core.server import ServerCore
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.evaluate import Metrics
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from fedoptima.runtime import wire_pb2 as wire
from fedoptima.runtime.checkpoint import Restored, load_server_checkpoint
from fedoptima.runtime.clock import RunClock
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.keeper import Keeper
from fedoptima.runtime.outbox import Outbox
from fedoptima.runtime.server_node import INTERRUPTED, ServerNode
from fedoptima.runtime.session import Session
from fedoptima.trace.record import Record
from fedoptima.trace.writer import TraceWriter
from tests.support.network import DEADLINE, tiny_recipe

LOG = logging.getLogger("fedoptima.server")
NAME = NodeId("fast")
JOIN = Join(incarnation=0, samples=32, flops_per_second=1e9, bytes_per_second=1e6)


class Posted(Outbox):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def put(self, message: Message) -> None:
        self.messages.append(message)


class WillingKeeper(Keeper):
    """A checkpoint is due when the test wants one."""

    wanted = False

    def due(self, core: ServerCore) -> bool:
        return self.wanted and self.possible(core)


class PatientEngine(ServerEngine):
    """Its evaluations take until they are let go."""

    go = Event()

    def evaluation(self) -> Callable[[], Metrics]:
        measure = super().evaluation()

        def wait() -> Metrics:
            assert self.go.wait(DEADLINE)
            return measure()

        return wait


class Stage:
    """A node on a real clock, with a trace and a keeper of checkpoints in a folder."""

    def __init__(
        self,
        folder: Path,
        setup: ServerSetup,
        *,
        keeping: bool = False,
        restored: Restored | None = None,
        engine: ServerEngine | None = None,
    ) -> None:
        self.folder = folder
        self.engine = engine or ServerEngine(setup.task)
        self.trace = TraceWriter(folder / f"{restored.life + 1 if restored else 0}.gz", {})
        self.keeper = WillingKeeper(
            folder / "checkpoints", self.trace, seconds=1e9, merges=None, kept=3, log=LOG
        )
        self.keeper.wanted = keeping
        self.compute = Compute("server", threads=1)
        self.node = ServerNode(
            restored.core if restored else setup.core(),
            self.engine,
            self.compute,
            RunClock(restored.now if restored else 0.0),
            run="this one",
            life=restored.life + 1 if restored else 0,
            keeper=self.keeper,
            device_traces=folder / "devices",
            log=LOG,
        )
        self.node.observers.append(self.trace.write)

    def connect(self, process: str = "p", name: NodeId = NAME) -> Session:
        hello = wire.Hello(name=name, process=process)
        session = Session(name, self.node.next_session(0), hello, "nowhere")
        session.outbox = Posted()
        self.node.opened(session)
        return session

    async def begin(self) -> Session:
        """One device has joined, and has the first model."""
        session = self.connect()
        self.node.receive(session, JOIN)
        await self.until(lambda: sent(session, GlobalModel))
        return session

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                await asyncio.sleep(0.001)

    async def end(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self.node.close_up()
        self.compute.close()
        self.trace.close()

    def kept(self, setup: ServerSetup) -> tuple[Restored, ServerEngine]:
        engine = ServerEngine(setup.task)
        found = load_server_checkpoint(self.folder / "checkpoints", engine, torch.device("cpu"))
        assert found is not None
        return found, engine


def sent(session: Session, kind: type[Message]) -> list[Message]:
    assert isinstance(session.outbox, Posted)
    return [message for message in session.outbox.messages if isinstance(message, kind)]


def answer_to(model: Message, ticket: int = 1) -> ModelUpdate:
    """What a device would hand in that has learned a little."""
    assert isinstance(model, GlobalModel)
    tensors = {
        name: tensor + 1 if tensor.is_floating_point() else tensor
        for name, tensor in unpack(model.data).items()
    }
    identity = PayloadId(f"{NAME}/0/{ticket}")
    return ModelUpdate(model.version, 32, Payload(identity, model.data.nbytes, tensors))


def same(some: Tensors, others: Tensors) -> bool:
    return all(torch.equal(some[name], others[name]) for name in some)


@pytest.fixture
def setup() -> ServerSetup:
    recipe = tiny_recipe("fl", deploy={"devices": 1}, stop={"rounds": 2, "hours": 1.0})
    return prepare_server(recipe)


# ---- checkpoints -----------------------------------------------------------------------------


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
        stage.keeper.wanted = True
        stage.node.receive(session, answer_to(model))
        stage.keeper.wanted = False
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


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, setup: ServerSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        (tmp_path / "checkpoints").write_text("in the way, as a full disk would be")
        stage = Stage(tmp_path, setup, keeping=True)
        session = await stage.begin()
        await stage.until(lambda: "no checkpoint could be written" in caplog.text)
        (tmp_path / "checkpoints").unlink()  # and there is room again
        stage.node.receive(session, answer_to(sent(session, GlobalModel)[0]))
        await stage.until(lambda: len(sent(session, GlobalModel)) == 2)
        assert not stage.node.outcome.done()
        await stage.end()
        assert stage.kept(setup)[0].core.planned

    asyncio.run(story())


# ---- a device goes in the middle of its merge ------------------------------------------------


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
        assert [stage.node.next_session(last) for last in (0, 41, 7)] == [1, 42, 43]
        await stage.end()

    asyncio.run(story())


# ---- what nobody can go on from --------------------------------------------------------------


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


def test_a_checkpoint_that_cannot_even_begin_ends_the_run_and_not_in_a_wait(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup, keeping=True)
        stage.node.observers.clear()
        stage.trace.close()  # what cannot be marked
        stage.connect()
        stage.node.receive(next(iter(stage.node.sessions.values())), JOIN)
        await stage.until(stage.node.outcome.done)
        assert isinstance(stage.node.outcome.exception(), ValueError)
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


# ---- interrupted -----------------------------------------------------------------------------


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
        stage.node.interrupt()
        assert not stage.node.outcome.done()
        await stage.until(stage.node.outcome.done)
        assert len(sent(session, GlobalModel)) == 1, "what would have followed is left undone"
        await stage.end()
        found, engine = stage.kept(setup)
        assert found.core.version == 1
        assert same(engine.export(), stage.engine.export())

    asyncio.run(story())


def test_a_server_stopped_in_its_last_evaluation_goes_on_to_the_end(tmp_path: Path) -> None:
    setup = prepare_server(tiny_recipe("fl", deploy={"devices": 1}, stop={"rounds": 1}))

    async def story() -> None:
        PatientEngine.go.clear()
        stage = Stage(tmp_path, setup, engine=PatientEngine(setup.task))
        session = await stage.begin()
        stage.node.receive(session, answer_to(sent(session, GlobalModel)[0]))
        await stage.until(lambda: stage.node.machine.progress.waiting)
        stage.node.interrupt()
        await stage.until(stage.node.outcome.done)
        await stage.end()
        PatientEngine.go.set()

        found, engine = stage.kept(setup)
        again = Stage(tmp_path, setup, restored=found, engine=engine)
        again.node.go_on_from(found)
        await again.until(again.node.outcome.done)
        assert again.node.outcome.result() == Halt("1 rounds done")
        assert again.node.machine.sessions == {}
        await again.end()

    asyncio.run(story())


# ---- devices' own records --------------------------------------------------------------------


def line(at: float, session: int = 1) -> str:
    return Record(at, NAME, Disconnected(NodeId("server"), session), []).to_line()


def read(session: Session) -> None:
    """The device's clock has been read: it shows what the server's does."""
    session.pong(wire.Pong(sent=0.0, device_time=0.0), 0.0)


def test_records_of_a_session_that_was_replaced_are_not_taken(
    tmp_path: Path, setup: ServerSetup
) -> None:
    """Its successor, maybe a new process, has been told how many there are, and counts on."""

    async def story() -> None:
        stage = Stage(tmp_path, setup)
        old = stage.connect("p")
        read(old)
        assert stage.node.take_records(old, 0, [line(0.0)]) == 1
        stage.node.closed(old, "replaced")
        new = stage.connect("q")
        read(new)
        assert stage.node.take_records(old, 1, [line(0.0, 7)]) == 1
        assert stage.node.take_records(new, 1, [line(0.0, 8)]) == 2
        await stage.end()

    asyncio.run(story())


def test_records_sent_twice_are_taken_once(tmp_path: Path, setup: ServerSetup) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = stage.connect()
        read(session)
        assert stage.node.take_records(session, 0, [line(0.0), line(0.0)]) == 2
        assert stage.node.take_records(session, 0, [line(0.0), line(0.0), line(0.0)]) == 3
        assert stage.node.take_records(session, 0, [line(0.0)]) == 3
        with pytest.raises(ProtocolViolation, match="from number 4 on"):
            stage.node.take_records(session, 4, [line(0.0)])
        await stage.end()

    asyncio.run(story())


def test_records_come_after_the_clock_was_read_and_never_from_the_future(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = stage.connect()
        with pytest.raises(ProtocolViolation):
            stage.node.take_records(session, 0, [line(0.0)])
        read(session)
        stage.node.take_records(session, 0, [line(1e300)])
        trace = stage.node.trace_of(NAME)
        assert trace is not None
        assert trace.last_at <= stage.node.clock()
        await stage.end()

    asyncio.run(story())


def test_records_that_cannot_be_written_stay_with_the_device(
    tmp_path: Path, setup: ServerSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = stage.connect()
        read(session)
        stage.node.take_records(session, 0, [line(0.0)])
        file = tmp_path / "devices" / f"{NAME}.jsonl.gz"
        kept = file.read_bytes()
        file.unlink()
        file.mkdir()  # in the way
        assert stage.node.take_records(session, 1, [line(0.0)]) == 1
        assert f"the records of {NAME} cannot be kept" in caplog.text
        file.rmdir()
        file.write_bytes(kept)
        assert stage.node.take_records(session, 1, [line(0.0)]) == 2
        await stage.end()

    asyncio.run(story())
