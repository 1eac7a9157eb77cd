"""Traces written by hand: who was told what, when, and what it did about it."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.analysis.idle_time import Usage, UsageAccount
from fedoptima.analysis.spans import Span, SpanAccount
from fedoptima.core.effects import Effect, Halt, Note, Run, Send
from fedoptima.core.events import Connected, Disconnected, Event, JobDone, Received
from fedoptima.core.jobs import (
    FullStep,
    Job,
    LoadModel,
    Merge,
    Part,
    PlanRun,
    Prepare,
    ServerStep,
)
from fedoptima.core.messages import ActivationBatch, GlobalModel, Join, ModelUpdate
from fedoptima.core.plan import BlockProfile, Plan
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.trace.record import Record

DATA = Payload(PayloadId("x"), 100)
A, B = NodeId("a"), NodeId("b")


def blob(name: str, nbytes: int) -> Payload:
    return Payload(PayloadId(name), nbytes)


def told(at: float, node: NodeId, event: Event, *effects: Effect) -> Record:
    return Record(at, node, event, effects)


def starts(at: float, node: NodeId, job: Job) -> Record:
    """Something makes the node begin a job; what it is told does not matter."""
    return told(at, node, Received(SERVER, 1, GlobalModel(0, 0.0, DATA)), Run(1, job))


def ends(at: float, node: NodeId, job: Job, *effects: Effect) -> Record:
    return told(at, node, JobDone(1, job, DATA), *effects)


def connects(at: float, *devices: NodeId) -> list[Record]:
    return [
        record
        for device in devices
        for record in (
            told(at, SERVER, Connected(device, 1)),
            told(at, device, Connected(SERVER, 1)),
        )
    ]


def plans(begin: float, end: float) -> list[Record]:
    return [starts(begin, SERVER, PlanRun(())), ends(end, SERVER, PlanRun(()))]


def prepares(begin: float, end: float, node: NodeId) -> list[Record]:
    return [starts(begin, node, Prepare("")), ends(end, node, Prepare(""))]


def hands_in(at: float, device: NodeId, *effects: Effect) -> Record:
    return told(at, SERVER, Received(device, 1, ModelUpdate(0, 8, DATA)), *effects)


def merge_of(*devices: NodeId) -> Merge:
    return Merge(0.0, tuple(Part(d, 1 / len(devices), DATA) for d in devices), devices)


def answers(*devices: NodeId) -> list[Effect]:
    return [Send(device, 1, GlobalModel(1, 0.0, DATA)) for device in devices]


def halts(at: float) -> Record:
    return told(at, SERVER, Received(A, 1, ModelUpdate(0, 8, DATA)), Halt("done"))


def loses(at: float, device: NodeId, *, alive: bool) -> list[Record]:
    lost = [told(at, SERVER, Disconnected(device, 1))]
    return [*lost, told(at, device, Disconnected(SERVER, 1))] if alive else lost


def works(begin: float, end: float, node: NodeId, job: Job | None = None) -> list[Record]:
    job = job or FullStep(0)
    return [starts(begin, node, job), ends(end, node, job)]


def loads(begin: float, end: float, node: NodeId) -> list[Record]:
    return works(begin, end, node, LoadModel(DATA, 0.0))


class SpanReader:
    """A span account and the usage account that it reads, fed together."""

    def __init__(self) -> None:
        self.usage = UsageAccount()
        self._spans = SpanAccount(self.usage)

    @property
    def now(self) -> float:
        return self._spans.now

    def observe(self, record: Record) -> list[Span]:
        self.usage.observe(record)
        return self._spans.observe(record)

    def finish(self) -> list[Span]:
        return self._spans.finish()


def usage(records: Sequence[Record]) -> dict[NodeId, Usage]:
    account = UsageAccount()
    for record in sorted(records, key=lambda record: record.at):
        account.observe(record)
    return dict(account.usage())


# ---- the server's side, message by message -------------------------------------------------------


def joins(at: float, *devices: NodeId, samples: int = 8) -> list[Record]:
    return [
        record
        for device in devices
        for record in (
            told(at, SERVER, Connected(device, 1)),
            told(at, SERVER, Received(device, 1, Join(0, samples, 1.0, 1.0))),
        )
    ]


def planned(at: float, *, model: int = 1000, blocks: Sequence[int] = (), split: int = 0) -> Record:
    """The blocks' bytes, and how many of them are on the device."""
    profiles = tuple(BlockProfile("block", 0.0, 0.0, 0, 0, 0, size) for size in blocks)
    plan = Plan(profiles, split, "none", None, "paper", ())
    return told(at, SERVER, JobDone(1, PlanRun(()), blob("plan", model), text=plan.to_json()))


def batch(at: float, device: NodeId, seq: int, nbytes: int, *effects: Effect) -> Record:
    message = ActivationBatch(seq, blob(f"{device}/{seq}", nbytes))
    return told(at, SERVER, Received(device, 1, message), *effects)


def step(device: NodeId, seq: int, *, part: int = 0, parts: int = 1) -> ServerStep:
    return ServerStep(device, 1, seq, blob(f"{device}/{seq}", 0), 0.0, part=part, parts=parts)


def stepped(at: float, job: ServerStep, *effects: Effect, samples: int = 4) -> Record:
    return told(at, SERVER, JobDone(1, job, blob("", 0), samples=samples), *effects)


def update(
    at: float,
    device: NodeId,
    name: str,
    *effects: Effect,
    version: int = 0,
    nbytes: int = 100,
    trained: int = 8,
) -> Record:
    message = ModelUpdate(version, trained, blob(name, nbytes))
    return told(at, SERVER, Received(device, 1, message), *effects)


def merge(*parts: tuple[NodeId, str, float]) -> Merge:
    """Each part: whose, the update's name, its weight."""
    return Merge(
        0.0, tuple(Part(device, weight, blob(name, 0)) for device, name, weight in parts), ()
    )


def merged(at: float, job: Merge, *effects: Effect, model: int = 1000) -> Record:
    return told(at, SERVER, JobDone(1, job, blob("global", model)), *effects)


def refusal(device: NodeId) -> Note:
    return Note("update refused", device)
