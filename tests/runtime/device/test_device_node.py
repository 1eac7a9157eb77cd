"""A device's node without a network."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Halt
from fedoptima.core.errors import ProtocolViolation, TrainingDiverged
from fedoptima.core.events import Disconnected, Event, JobDone, Measured, Received
from fedoptima.core.jobs import Forward, FullStep, Job, Prepare
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import (
    Assignment,
    Failed,
    GlobalModel,
    Join,
    Message,
    ModelUpdate,
    ProgramSpec,
    Stop,
)
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.runtime import disk
from fedoptima.runtime.clock import RunClock
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.device.device_node import DeviceNode
from fedoptima.runtime.device.state import StateFile
from fedoptima.runtime.device.telemetry import Telemetry
from fedoptima.testing.toy import PLAN, ToyDevice
from fedoptima.trace.record import Record
from tests.support.bench import global_model
from tests.support.network import DEADLINE, Gate
from tests.support.rows import FULL, GRADIENT

NAME = NodeId("pi")
LOG = logging.getLogger("fedoptima.device")
E = TypeVar("E", bound=Event)


class Engine(ToyDevice):
    def admit(self, message: Message) -> None:
        pass

    def receive(self, message: Message) -> Message:
        return message


class Line:
    """A link that goes nowhere."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: list[Message] = []
        self.ended: list[str] = []
        self.rate = 0.0

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def carries(self) -> float:
        return self.rate

    def end(self, reason: str) -> None:
        self.ended.append(reason)


class Stage:
    def __init__(self, tmp_path: Path) -> None:
        self.gate = Gate()
        self.compute = Compute(NAME, threads=1)
        self.records: list[Record] = []
        self.state = tmp_path / "state" / "pi.json"
        self.node = DeviceNode(
            NAME,
            DeviceCore(samples=8, flops_per_second=1.0, bytes_per_second=1.0),
            self.gate.around(Engine(target=1.0)),
            self.compute,
            RunClock(),
            run="this one",
            state=StateFile(self.state),
            disk=disk.Disk(self.state, LOG),
            telemetry=Telemetry(0),
            log=LOG,
        )
        self.node.observers.append(self.records.append)

    def begin(self, link: Line, program: object = FULL, iterations: int = 2) -> None:
        self.node.connected(link)
        self.node.receive(link, Assignment(PLAN, program, iterations))  # type: ignore[arg-type]
        self.node.receive(link, global_model())

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                await asyncio.sleep(0.001)

    def events(self, kind: type[E]) -> list[E]:
        return [record.event for record in self.records if isinstance(record.event, kind)]


def kinds(messages: list[Message]) -> list[type]:
    return [type(message) for message in messages]


def test_a_device_with_a_cut_of_its_own_says_what_it_has_measured(tmp_path: Path) -> None:
    async def story(program: ProgramSpec) -> list[float]:
        stage, link = Stage(tmp_path), Line(1)
        link.rate = 500.0
        stage.begin(link, program)
        await stage.until(lambda: ModelUpdate in kinds(link.sent))
        stage.compute.close()
        assert len(stage.events(Measured)) == (1 if program.cut else 0)
        return [sent.bytes_per_second for sent in link.sent if isinstance(sent, ModelUpdate)]

    assert asyncio.run(story(replace(FULL, cut=2))) == [500.0]
    assert asyncio.run(story(FULL)) == [0.0]


class Particular(Engine):
    """Models from version 1 on are of another plan than the first."""

    plan = ""

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        if not isinstance(job, Prepare):
            return super().execute(job, result)
        self.reset()
        self.plan = job.plan
        return super().execute(Prepare(PLAN), result)

    def admit(self, message: Message) -> None:
        if isinstance(message, GlobalModel) and (message.version > 0) != (self.plan != PLAN):
            raise ProtocolViolation("a model of another plan")


def test_a_model_for_a_new_plan_may_come_before_the_device_has_prepared(tmp_path: Path) -> None:
    async def story() -> None:
        stage, link = Stage(tmp_path), Line(1)
        stage.gate.around(Particular(target=1.0))
        stage.begin(link)
        await stage.until(lambda: kinds(link.sent) == [Join, ModelUpdate])
        stage.gate.hold(Prepare)
        stage.node.receive(link, Assignment("another", replace(FULL, cut=2), 2))
        assert kinds(link.sent)[2:] == [Join]  # the server answers it at once
        stage.node.receive(link, global_model(1))
        stage.gate.hold()
        await stage.until(lambda: kinds(link.sent)[3:] == [ModelUpdate])
        with pytest.raises(ProtocolViolation):  # from now on they are looked at again
            stage.node.receive(link, global_model(0))
        stage.compute.close()

    asyncio.run(story())


def test_a_round_is_trained_and_handed_in(tmp_path: Path) -> None:
    async def story() -> None:
        stage, link = Stage(tmp_path), Line(1)
        stage.begin(link)
        await stage.until(lambda: kinds(link.sent) == [Join, ModelUpdate])
        assert isinstance(link.sent[1], ModelUpdate)
        assert link.sent[1].trained == 8
        stage.node.receive(link, Stop("over"))
        assert stage.node.outcome.result().reason == "over"
        stage.compute.close()

    asyncio.run(story())


def test_the_step_is_on_disk_before_its_update_goes_out(tmp_path: Path) -> None:
    """Or a device killed at that moment would train on the same data again."""

    class Watching(Line):
        def __init__(self, state: Path) -> None:
            super().__init__(1)
            self.state = state
            self.steps: list[int] = []

        def send(self, message: Message) -> None:
            super().send(message)
            if isinstance(message, ModelUpdate):
                self.steps.append(json.loads(self.state.read_text())["step"])

    async def story() -> None:
        stage = Stage(tmp_path)
        link = Watching(stage.state)
        stage.begin(link)
        await stage.until(lambda: ModelUpdate in kinds(link.sent))
        assert link.steps == [2]
        stage.compute.close()

    asyncio.run(story())


def test_a_device_whose_state_cannot_be_written_goes_on_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        stage, link = Stage(tmp_path), Line(1)
        stage.state.mkdir()  # in the way
        stage.begin(link)
        await stage.until(lambda: ModelUpdate in kinds(link.sent))
        stage.node.save()
        stage.state.rmdir()
        stage.node.save()
        stage.node.close()
        stage.compute.close()
        assert StateFile(stage.state)._read() is not None

    asyncio.run(story())
    assert caplog.text.count("what this device keeps cannot be written") == 1
    assert caplog.text.count("everything is written again") == 1


def test_what_an_old_link_still_brings_is_not_heard(tmp_path: Path) -> None:
    async def story() -> None:
        stage, old, new = Stage(tmp_path), Line(1), Line(2)
        stage.node.connected(old)
        stage.node.disconnected(old)
        stage.node.connected(new)
        stage.node.receive(old, Stop("too late"))
        stage.node.disconnected(old)
        assert not stage.node.outcome.done()
        assert stage.events(Received) == []
        assert stage.events(Disconnected) == [Disconnected(SERVER, 1)]
        stage.compute.close()

    asyncio.run(story())


def test_a_result_of_before_the_reconnect_is_not_sent_in_the_new_session(tmp_path: Path) -> None:
    async def story() -> None:
        stage, old, new = Stage(tmp_path), Line(1), Line(2)
        stage.gate.hold(Forward)
        stage.begin(old, GRADIENT)
        await stage.until(lambda: any(isinstance(job, Forward) for job in stage.gate.begun))
        stage.node.disconnected(old)
        stage.node.connected(new)
        stage.gate.hold()
        await stage.until(lambda: any(e.job == Forward(0) for e in stage.events(JobDone)))
        assert kinds(new.sent) == [Join]
        stage.compute.close()

    asyncio.run(story())


def test_a_server_that_breaks_the_protocol_is_left_and_the_work_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        stage, link, next_link = Stage(tmp_path), Line(1), Line(2)
        stage.gate.hold(FullStep)
        stage.begin(link)
        await stage.until(lambda: any(isinstance(job, FullStep) for job in stage.gate.begun))
        stage.node.receive(link, global_model(7))
        assert link.ended == ["the server sent a model while training"]
        assert stage.events(Disconnected) == [Disconnected(SERVER, 1)]
        assert not stage.node.outcome.done()
        stage.gate.hold()
        stage.node.connected(next_link)
        await stage.until(lambda: kinds(next_link.sent) == [Join, ModelUpdate])
        stage.compute.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TrainingDiverged("the loss is not finite"), "the loss is not finite"),
        (ValueError("too few samples"), "ValueError: too few samples"),
    ],
)
def test_a_job_that_fails_ends_the_device_and_the_server_is_told(
    error: Exception, said: str, tmp_path: Path
) -> None:
    async def story() -> None:
        stage, link = Stage(tmp_path), Line(1)
        stage.gate.around(Engine(target=1.0, error=error, fails_at=1))
        stage.begin(link)
        await stage.until(stage.node.outcome.done)
        halt = stage.node.outcome.result()
        assert halt == Halt(said, failed=True)
        assert link.sent[1:] == [Failed(said, isinstance(error, TrainingDiverged))]
        stage.compute.close()

    asyncio.run(story())
