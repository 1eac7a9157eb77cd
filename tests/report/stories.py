"""Traces written by hand: who was told what, when, and what it did about it."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.core.effects import Effect, Halt, Run, Send
from fedoptima.core.events import Connected, Disconnected, Event, JobDone, Received
from fedoptima.core.jobs import FullStep, Job, LoadModel, Merge, Part, PlanRun, Prepare
from fedoptima.core.messages import GlobalModel, ModelUpdate
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.report.usage import Usage, UsageAccount
from fedoptima.trace.record import Record

DATA = Payload(PayloadId("x"), 100)
A, B = NodeId("a"), NodeId("b")


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


def usage(records: Sequence[Record]) -> dict[NodeId, Usage]:
    account = UsageAccount()
    for record in sorted(records, key=lambda record: record.at):
        account.observe(record)
    return dict(account.usage())
