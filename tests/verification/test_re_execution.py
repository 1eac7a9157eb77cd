"""Jobs are executed again in the order that their payloads allow."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedoptima.core.effects import Fold
from fedoptima.core.errors import TrainingDiverged
from fedoptima.core.events import Connected, JobDone, JobFailed
from fedoptima.core.jobs import (
    AddUp,
    ExportModel,
    FoldedMerge,
    FullStep,
    Job,
    LoadModel,
    Merge,
    Part,
    PlanRun,
)
from fedoptima.core.machine import Outcome
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.re_execution import Irreproducible, ReExecution, Workshop, count_uses
from tests.experiments.runs import FLEET
from tests.verification.recorded import recorded

CPU = torch.device("cpu")
A, B = NodeId("a"), NodeId("b")


class Notebook:
    """An engine that writes down what it is asked; what it makes is one tensor."""

    def __init__(self, node: NodeId, log: list[str], made: list[weakref.ref[Tensor]]) -> None:
        self._node, self._log, self._made = node, log, made
        self.fails = False

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        self._log.append(f"{self._node} {type(job).__name__}")
        if isinstance(job, AddUp):
            return Outcome(Payload(result, 0))
        if self.fails:
            raise TrainingDiverged("on purpose")
        tensor = torch.zeros(3)
        self._made.append(weakref.ref(tensor))
        return Outcome(Payload(result, 12, {"x": tensor}), samples=5)

    def reset(self) -> None:
        self._log.append(f"{self._node} reset")


class Shop:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.made: list[weakref.ref[Tensor]] = []
        self.engines = {node: Notebook(node, self.log, self.made) for node in (SERVER, A, B)}
        devices = {node: self.engines[node] for node in (A, B)}
        self.workshop = Workshop(self.engines[SERVER], CPU, devices, CPU)

    def execute(self, *records: Record) -> None:
        ReExecution(self.workshop, count_uses(records)).run(records)

    @property
    def alive(self) -> int:
        return sum(tensor() is not None for tensor in self.made)


def done(node: NodeId, ticket: int, job: Job, *, samples: int = 5, nbytes: int = 12) -> Record:
    result = Payload(PayloadId(f"{node}/0/{ticket}"), nbytes)
    return Record(0.0, node, JobDone(ticket, job, result, samples), [])


def made_by(node: NodeId, ticket: int) -> Payload:
    return Payload(PayloadId(f"{node}/0/{ticket}"), 12)


PLAN = done(SERVER, 1, PlanRun(()))
LOAD = done(A, 1, LoadModel(made_by(SERVER, 1), 0.0))
EXPORT = done(A, 2, ExportModel())
MERGE = done(SERVER, 2, Merge(0.0, (Part(A, 1.0, made_by(A, 2)),), (A,)))
LOAD_AGAIN = done(A, 3, LoadModel(made_by(SERVER, 2), 0.0))


@pytest.mark.parametrize(
    "order",
    [
        [PLAN, LOAD, EXPORT, MERGE, LOAD_AGAIN],
        [LOAD, EXPORT, LOAD_AGAIN, PLAN, MERGE],
        [PLAN, MERGE, LOAD, EXPORT, LOAD_AGAIN],
    ],
    ids=["by time", "the device's first", "the server's first"],
)
def test_a_job_waits_for_what_it_needs(order: Sequence[Record]) -> None:
    shop = Shop()
    shop.execute(*order)
    assert shop.log == [
        "server PlanRun",
        "a LoadModel",
        "a ExportModel",
        "server Merge",
        "a LoadModel",
    ]


def test_a_payload_is_let_go_after_its_last_use() -> None:
    shop = Shop()
    run = ReExecution(shop.workshop, count_uses([PLAN, LOAD, EXPORT, MERGE, LOAD_AGAIN]))
    expected = iter([0, 1, 0, 1, 1])

    def watched() -> Iterator[Record]:
        for record in (PLAN, LOAD, EXPORT, MERGE, LOAD_AGAIN):
            assert shop.alive == next(expected), record
            yield record

    run.run(watched())
    assert shop.alive == 0


def test_an_update_that_was_added_up_is_let_go_before_its_merge() -> None:
    shop = Shop()
    part = Part(A, 8.0, made_by(A, 2))
    arrives = Record(0.0, SERVER, Connected(A, 1), [Fold(part)])
    merge = done(SERVER, 2, FoldedMerge(0.0, (part,), (A,)))
    records = [PLAN, LOAD, EXPORT, arrives]
    shop.execute(*records)
    assert shop.alive == 0
    shop = Shop()
    shop.execute(*records, merge)
    assert shop.log[-2:] == ["server AddUp", "server FoldedMerge"]


def test_a_payload_that_nobody_recorded_making_is_named() -> None:
    shop = Shop()
    with pytest.raises(Irreproducible, match=r"Merge of server \(record 3\) needs a/0/2.*lost"):
        shop.execute(PLAN, LOAD, MERGE, LOAD_AGAIN)


@pytest.mark.parametrize("wrong", [{"samples": 6}, {"nbytes": 13}])
def test_a_job_that_comes_to_something_else_is_found(wrong: dict[str, int]) -> None:
    spoilt = done(A, 1, FullStep(0), **wrong)
    with pytest.raises(Irreproducible, match=r"record 2 .*FullStep, executed again\.\w+"):
        Shop().execute(PLAN, spoilt)


def test_a_job_that_failed_has_to_fail_again() -> None:
    failed = Record(0.0, A, JobFailed(1, FullStep(0), "on purpose", diverged=True), [])
    with pytest.raises(Irreproducible, match="FullStep"):
        Shop().execute(failed)
    shop = Shop()
    shop.engines[A].fails = True
    shop.execute(failed)
    with pytest.raises(Irreproducible, match="TrainingDiverged: on purpose"):
        shop.execute(done(A, 1, FullStep(0)))


def test_a_device_the_recipe_does_not_know_is_named() -> None:
    with pytest.raises(Irreproducible, match=r"does not know 'c'.*a, b"):
        Shop().execute(done(NodeId("c"), 1, FullStep(0)))


def test_the_first_jobs_of_a_new_life_find_a_fresh_engine(tmp_path: Path) -> None:
    changes = [
        {"at": 0.1, "device": "fast", "kind": "leave"},
        {"at": 0.15, "device": "fast", "kind": "return"},
    ]
    recorded(tmp_path / "run", fleet={**FLEET, "changes": changes})
    records = list(read_trace(tmp_path / "run" / "trace.jsonl.gz"))
    fast = NodeId("fast")
    log: list[str] = []
    engine = Notebook(fast, log, [])
    shop = Workshop(engine, CPU, {fast: engine}, CPU)
    own = [
        replace(r, event=replace(r.event, job=FullStep(0), result=made(r), samples=5, text=""))
        if isinstance(r.event, JobDone)
        else r
        for r in records
        if r.node == fast
    ]
    ReExecution(shop, {}).run(own)
    assert log.count("fast reset") == 2
    assert log[0] == "fast reset"


def made(record: Record) -> Payload:
    assert isinstance(record.event, JobDone)
    return Payload(record.event.result.id, 12)
