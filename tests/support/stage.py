"""A server's node without a network: its core and engine are real, its sessions go nowhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event

import torch

from fedoptima.core.events import Metrics
from fedoptima.core.messages import GlobalModel, Join, Message, ModelUpdate
from fedoptima.core.server import ServerCore
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.server_setup import ServerSetup
from fedoptima.runtime.clock import RunClock
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.disk import Disk
from fedoptima.runtime.server.checkpoint import Restored, load_server_checkpoint
from fedoptima.runtime.server.checkpointer import Checkpointer
from fedoptima.runtime.server.device_records import DeviceRecords, RecordQuota
from fedoptima.runtime.server.server_node import ServerNode
from fedoptima.runtime.server.server_trace import ServerTrace
from fedoptima.runtime.server.session import Session
from fedoptima.runtime.wire.outbox import Outbox
from fedoptima.trace.writer import TraceWriter
from tests.support.network import DEADLINE

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


class EagerCheckpointer(Checkpointer):
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
    """A node on a real clock, with a trace and a checkpointer in a folder."""

    def __init__(
        self,
        folder: Path,
        setup: ServerSetup,
        *,
        keeping: bool = False,
        restored: Restored | None = None,
        engine: ServerEngine | None = None,
        record_quota: RecordQuota | None = None,
        process: int | None = None,
        short_here: bool = False,
    ) -> None:
        """``process``: how many have served the run before."""
        if process is None:
            process = restored.incarnation + 1 if restored else 0
        self.folder = folder
        self.engine = engine or ServerEngine(setup.workload)
        path = folder / f"{process}.gz"
        clock = RunClock(restored.now if restored else 0.0)
        self.disk = Disk(folder, LOG)
        self.trace = ServerTrace(TraceWriter(path, {}), self.disk, clock)
        self.checkpointer = EagerCheckpointer(
            folder / "checkpoints", self.trace, self.disk, seconds=1e9, merges=None, kept=3, log=LOG
        )
        self.checkpointer.wanted = keeping
        self.compute = Compute("server", threads=1, short_here=short_here)
        self.node = ServerNode(
            restored.core if restored else setup.core(),
            self.engine,
            self.compute,
            clock,
            run="this one",
            incarnation=process,
            checkpointer=self.checkpointer,
            records=DeviceRecords(
                folder / "devices", record_quota or RecordQuota(), LOG, self.disk
            ),
            log=LOG,
        )
        self.node.observers.append(self.trace.write)

    def connect(self, process: str = "p", name: NodeId = NAME) -> Session:
        session = Session(name, self.node.next_session(name, 0), process, "nowhere")
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
            await self.node.shut_down()
        self.compute.close()
        await self.trace.close()

    def kept(self, setup: ServerSetup) -> tuple[Restored, ServerEngine]:
        engine = ServerEngine(setup.workload)
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
