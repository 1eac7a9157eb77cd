"""Executes the jobs of a recorded run once more, on fresh engines, with the payloads they make.

Each node's jobs run in their recorded order; a job waits until the payloads it needs exist, so
records whose clocks agree only roughly do not matter. A payload is let go after its last use.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from fedoptima.core.effects import Fold
from fedoptima.core.errors import FedOptimaError
from fedoptima.core.events import Gap, JobDone, JobFailed
from fedoptima.core.jobs import AddUp, FoldedMerge, Job
from fedoptima.core.machine import ComputeEngine, Outcome
from fedoptima.core.serialization import freeze, thaw
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId, payload_id
from fedoptima.trace.record import Record
from fedoptima.verification.difference import first_difference
from fedoptima.verification.matching import Incarnations


class Irreproducible(FedOptimaError):
    """A recorded job cannot be executed again, or comes to something else."""


class ReExecutedEngine(ComputeEngine, Protocol):
    def reset(self) -> None: ...


@dataclass(frozen=True)
class Workshop:
    """Fresh engines for every node of a run, and where each side computes."""

    server: ComputeEngine
    server_compute: torch.device
    devices: Mapping[NodeId, ReExecutedEngine]
    device_compute: torch.device


@dataclass(frozen=True, slots=True)
class _Step:
    number: int  # of the record
    record: Record
    job: Job
    restarted: bool = False  # the first job of the device's process
    recorded: Outcome | None = None  # what came of it, if it did not fail


class ReExecution:
    def __init__(self, workshop: Workshop, uses: Mapping[PayloadId, int]) -> None:
        """``uses``: how many jobs need each payload, as `count_uses` says."""
        self._workshop = workshop
        self._uses = Counter(uses)
        self._incarnations = Incarnations()
        self._restarted: set[NodeId] = set()
        self._queues: dict[NodeId, deque[_Step]] = {}
        self._blocked: dict[PayloadId, list[NodeId]] = {}
        self._values: dict[PayloadId, object] = {}

    def run(self, records: Iterable[Record]) -> None:
        for number, record in enumerate(records, start=1):
            node = record.node
            if isinstance(record.event, Gap):
                raise Irreproducible("the trace has a gap: what was done there is not known")
            if self._incarnations.begun_by(record) is not None:
                self._restarted.add(node)
            for job, recorded in _executed(record):
                step = _Step(number, record, job, node in self._restarted, recorded)
                self._restarted.discard(node)
                queue = self._queues.setdefault(node, deque())
                queue.append(step)
                if len(queue) == 1:  # otherwise the node is blocked already
                    self._advance(node)
        for node, queue in self._queues.items():
            if queue:
                raise Irreproducible(self._explain(node, queue[0]))

    def _advance(self, node: NodeId) -> None:
        ready = [node]
        while ready:
            node = ready.pop()
            queue = self._queues[node]
            while queue:
                missing = self._missing(queue[0].job)
                if missing is not None:
                    self._blocked.setdefault(missing, []).append(node)
                    break
                made = self._execute(queue.popleft())
                ready += self._blocked.pop(made, ())

    def _missing(self, job: Job) -> PayloadId | None:
        return next((name for name in needs(job) if name not in self._values), None)

    def _explain(self, node: NodeId, step: _Step) -> str:
        return (
            f"{type(step.job).__name__} of {node} (record {step.number}) needs "
            f"{self._missing(step.job)}, and no record says how that was made: the last records "
            "of a device that was killed, or of a server before it was resumed, are lost"
        )

    # ---- one job -----------------------------------------------------------------------------

    def _execute(self, step: _Step) -> PayloadId:
        node, job, recorded = step.record.node, step.job, step.recorded
        if step.restarted:
            self._device(node).reset()
        engine = self._workshop.server if node == SERVER else self._device(node)
        name = recorded.result.id if recorded else payload_id(node, 0, 0)  # that of nothing
        ready = cast(Job, thaw(freeze(job), self._placed(node, job)))
        outcome, error = None, None
        try:
            outcome = engine.execute(ready, name)
        except Exception as found:  # whatever it is: it says that the job failed
            error = found
        self._release(job)
        what = f"{type(job).__name__}, executed again"
        difference = first_difference(step.number, step.record, what, recorded, outcome)
        if difference is not None:
            reason = f" ({type(error).__name__}: {error})" if error else ""
            raise Irreproducible(f"{difference}{reason}") from error
        if outcome is not None and self._uses[name]:
            self._values[name] = outcome.result.value
        return name

    def _device(self, node: NodeId) -> ReExecutedEngine:
        engine = self._workshop.devices.get(node)
        if engine is None:
            known = ", ".join(self._workshop.devices)
            raise Irreproducible(
                f"the recipe does not know {node!r}, so its data is not here (there are {known})"
            )
        return engine

    def _placed(self, node: NodeId, job: Job) -> dict[PayloadId, object]:
        """The payloads a job needs, where its engine computes."""
        shop = self._workshop
        compute = shop.server_compute if node == SERVER else shop.device_compute
        placed: dict[PayloadId, object] = {}
        for name in needs(job):
            tensors = cast(Mapping[str, Tensor], self._values[name])
            placed[name] = {key: tensor.to(compute) for key, tensor in tensors.items()}
        return placed

    def _release(self, job: Job) -> None:
        for name in needs(job):
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._values[name]


def _executed(record: Record) -> Iterator[tuple[Job, Outcome | None]]:
    """Jobs, and what came of them if they did not fail."""
    event = record.event
    if isinstance(event, JobDone):
        outcome = Outcome(event.result, event.samples, event.text, event.micro_batches)
        yield event.job, outcome
    elif isinstance(event, JobFailed):
        yield event.job, None
    for effect in record.effects:
        if isinstance(effect, Fold):
            yield AddUp(effect.part), Outcome(Payload(effect.part.data.id, 0))


def needs(job: Job) -> list[PayloadId]:
    """The payloads a job works on."""
    found: dict[PayloadId, object] = {}
    if not isinstance(job, FoldedMerge):
        freeze(job, found)
    return list(found)


def count_uses(records: Iterable[Record]) -> Counter[PayloadId]:
    """How many of the recorded jobs need each payload."""
    uses: Counter[PayloadId] = Counter()
    for record in records:
        for job, _ in _executed(record):
            uses.update(needs(job))
    return uses
