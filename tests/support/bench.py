"""One machine on the bench: events in, effects out, invariants checked after every event."""

from __future__ import annotations

from typing import TypeVar

import fedoptima.core.serializable_types  # noqa: F401  (snapshots need every class by name)
from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Effect, Evaluate, Run, Send, SetTimer
from fedoptima.core.events import (
    Connected,
    Disconnected,
    Evaluated,
    EvaluationFailed,
    Event,
    JobDone,
    JobFailed,
    Received,
    TimerFired,
)
from fedoptima.core.jobs import Job
from fedoptima.core.machine import Machine
from fedoptima.core.messages import Assignment, GlobalModel, Join, Message, ModelUpdate, ProgramSpec
from fedoptima.core.method import Method
from fedoptima.core.server import ServerCore
from fedoptima.core.settings import ServerSettings
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.testing.toy import PLAN
from tests.support.rows import FULL

M = TypeVar("M")


def payload(identity: str, nbytes: int = 100) -> Payload:
    return Payload(PayloadId(identity), nbytes, 0.0)


def update(identity: str, *, version: int = 0, trained: int = 4) -> ModelUpdate:
    return ModelUpdate(version, trained, payload(identity))


def sent(effects: list[Effect], kind: type[M]) -> list[tuple[NodeId, M]]:
    """The messages of a kind, with whom they go to."""
    sends = (effect for effect in effects if isinstance(effect, Send))
    return [(send.to, send.message) for send in sends if isinstance(send.message, kind)]


def of(effects: list[Effect], kind: type[M]) -> list[M]:
    return [effect for effect in effects if isinstance(effect, kind)]


class Bench:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.checking = True
        self.now = 0.0
        self.running: Run | None = None
        self.timers: dict[str, float] = {}
        self.asked: list[Evaluate] = []

    def tell(self, event: Event) -> list[Effect]:
        effects = self.machine.handle(event, self.now)
        if self.checking:
            self.machine.check()
        for effect in effects:
            match effect:
                case Run():
                    assert self.running is None, "one job at a time"
                    self.running = effect
                case SetTimer(key, at):
                    self.timers[key] = at
                case Evaluate():
                    self.asked.append(effect)
        return effects

    @property
    def job(self) -> Job | None:
        return self.running.job if self.running else None

    def done(self, *, samples: int = 0, text: str = "", nbytes: int = 100) -> list[Effect]:
        """The running job's result comes in."""
        assert self.running is not None, "nothing is running"
        run, self.running = self.running, None
        result = payload(f"{type(run.job).__name__}/{run.ticket}", nbytes)
        return self.tell(JobDone(run.ticket, run.job, result, samples, text))

    def fail(self, error: str, *, diverged: bool = False) -> list[Effect]:
        assert self.running is not None
        run, self.running = self.running, None
        return self.tell(JobFailed(run.ticket, run.job, error, diverged))

    def fire(self, key: str) -> list[Effect]:
        self.now = max(self.now, self.timers.pop(key))
        return self.tell(TimerFired(key))

    def evaluated(self, accuracy: float | None = None) -> list[Effect]:
        """The oldest evaluation that is open is answered."""
        metrics = () if accuracy is None else (("accuracy", accuracy),)
        return self.tell(Evaluated(self.asked.pop(0).index, metrics))

    def evaluation_fails(self, error: str) -> list[Effect]:
        return self.tell(EvaluationFailed(self.asked.pop(0).index, error))


class ServerBench(Bench):
    def __init__(self, method: Method, settings: ServerSettings | None = None) -> None:
        self.server = ServerCore(method, settings or ServerSettings(StopRule(rounds=1000)))
        super().__init__(self.server)
        self.sessions: dict[str, int] = {}

    def joins(self, name: str, **said: object) -> list[Effect]:
        """Connects, and says its first word."""
        self.connects(name)
        figures = {"incarnation": 0, "samples": 8, "flops_per_second": 1.0, "bytes_per_second": 1.0}
        return self.says(name, Join(**(figures | said)))  # type: ignore[arg-type]

    def connects(self, name: str) -> list[Effect]:
        self.sessions[name] = self.sessions.get(name, 0) + 1
        return self.tell(Connected(NodeId(name), self.sessions[name]))

    def leaves(self, name: str) -> list[Effect]:
        return self.tell(Disconnected(NodeId(name), self.sessions[name]))

    def says(self, name: str, message: Message) -> list[Effect]:
        return self.tell(Received(NodeId(name), self.sessions[name], message))


def running_server(method: Method, *names: str, **settings: object) -> ServerBench:
    """A server that has planned and begun with these devices; copies, if any, are open."""
    defaults = {
        "stop": StopRule(rounds=1000),
        "devices": len(names),
        "iterations": 2,
        "batch_size": 4,
    }
    settings = defaults | settings
    bench = ServerBench(method, ServerSettings(**settings))  # type: ignore[arg-type]
    for name in names:
        bench.joins(name)
    bench.done(text=PLAN)
    while bench.running is not None:
        bench.done()
    return bench


class DeviceBench(Bench):
    def __init__(self, core: DeviceCore | None = None) -> None:
        self.device = core or DeviceCore(samples=8, flops_per_second=1.0, bytes_per_second=1.0)
        super().__init__(self.device)
        self.session = 0

    def connects(self) -> list[Effect]:
        self.session += 1
        return self.tell(Connected(SERVER, self.session))

    def loses_connection(self) -> list[Effect]:
        return self.tell(Disconnected(SERVER, self.session))

    def hears(self, message: Message) -> list[Effect]:
        return self.tell(Received(SERVER, self.session, message))

    def assigned(self, program: ProgramSpec, iterations: int = 2, plan: str = PLAN) -> None:
        self.hears(Assignment(plan, program, iterations))
        self.done()  # Prepare


def global_model(version: int = 0) -> GlobalModel:
    return GlobalModel(version, 0.25, payload(f"server/0/{version}"))


def training_device(program: ProgramSpec, *, version: int = 0, iterations: int = 2) -> DeviceBench:
    """A device in the first job of its first round."""
    bench = DeviceBench()
    bench.connects()
    bench.assigned(program, iterations)
    bench.hears(global_model(version))
    bench.done()  # LoadModel
    return bench


def pending_device(version: int = 0) -> DeviceBench:
    """A device that has handed in and has no answer yet."""
    bench = training_device(FULL, version=version)
    for _ in range(3):  # two steps and the export
        bench.done(samples=4)
    return bench


def joined_with(effects: list[Effect]) -> Join:
    ((_, message),) = sent(effects, Join)
    return message
