"""The `processes` executor: tensor work in worker processes, beside the virtual clock.

The driver is told what a job declares, by the code that a dry run uses, and continues. A worker
keeps a device from the beginning of a round to its end, unless another one has nothing else to do
and takes it over; in between the device's state (momentum, say) is in shared memory, and any worker
may go on with it. The server stays with the first worker, which trains devices only while there is
nothing to do for the server.

An error that a job raises cannot undo what it has declared. A device's is told in place of its
next update, and until then its batches train nothing; the server's ends the run at the next wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module

from torch import Tensor

from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.events import Metrics
from fedoptima.core.jobs import Job, Prepare, RobustMerge, source_of
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import Message, ModelUpdate
from fedoptima.core.plan import Plan
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.payloads import Tensors, copy_of
from fedoptima.engine.workload import Workload
from fedoptima.sim.dry import Dry, DryDeviceEngine, DryServerEngine
from fedoptima.sim.executor import Inspection, LateFailure, raise_if_not_of_the_node
from fedoptima.sim.processes.inputs import inputs_of, with_inputs
from fedoptima.sim.processes.messages import (
    Aside,
    Book,
    Declared,
    Done,
    EvaluateBatches,
    Forget,
    Reset,
    Restore,
    Save,
    Snapshot,
)
from fedoptima.sim.processes.queues import Item, Queue
from fedoptima.sim.processes.schedule import Schedule
from fedoptima.sim.processes.shared_memory import FreeMemory, SharedMemory, SharedTensors
from fedoptima.sim.processes.worker import BuildDevice
from fedoptima.sim.processes.worker_pool import WorkerPool

_SHARES = 4  # of an evaluation, for each worker


class Processes:
    def __init__(
        self, workload: Workload, batches: Mapping[NodeId, int], build: BuildDevice, workers: int
    ) -> None:
        """``batches``: samples in each device's batch."""
        import_module("torch._dynamo")  # optimisers load it; here once for all workers
        self._workload = workload
        self._build = build
        self._workers = workers
        self._plans = DryServerEngine(workload, batches, workload.labels.nbytes)
        devices = {d: DryDeviceEngine(self._plans, batch) for d, batch in batches.items()}
        self._declare = Dry(self._plans, devices)
        self._queues = {node: Queue(node) for node in (SERVER, *batches)}
        self._memory = SharedMemory(workers + 1)
        self._region = self._memory.region(workers)  # of this process
        self._free = FreeMemory()
        self._given: dict[PayloadId, SharedTensors] = {}  # from a checkpoint
        self._restored: Restore | None = None
        self._pool: WorkerPool | None = None
        self._schedule: Schedule | None = None
        # The last job of the server that may have found a device's batches to be bad.
        self._seen: dict[NodeId, Item] = {}
        self._checker: DeviceEngine | None = None

    # ---- jobs --------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        return self._plans.plan

    def execute(self, node: NodeId, job: Job, result: PayloadId) -> Outcome:
        outcome = self._declare.execute(node, job, result)
        inputs = inputs_of(job)
        if any(type(value) is dict for value in inputs.values()):
            job = with_inputs(job, self._share)
            inputs = inputs_of(job)
        robust = isinstance(job, RobustMerge)
        nbytes = outcome.result.nbytes
        declared = Declared(result, nbytes, outcome.samples, None if robust else outcome.text)
        value = self._free.new_value() if nbytes else None
        needed = [v for v in inputs.values() if isinstance(v, SharedTensors)]
        schedule = self._started()
        item = schedule.add(node, job, needed, declared, value)
        if node == SERVER:
            device = source_of(job)
            if device is not None:
                self._seen[device] = item
        if value is None:
            return outcome
        value.maker = item
        outcome = replace(outcome, result=Payload(result, nbytes, value))
        if robust:  # the core reads who was refused
            schedule.wait(lambda: item.done)
            outcome = replace(outcome, text=item.result.text)
        return outcome

    def reset(self, device: NodeId) -> None:
        queue = self._queues[device]
        if queue.worker is None and not queue.items:
            queue.aside = queue.error = None
        else:
            self._started().add(device, Reset())
        self._forget(device)

    def _forget(self, device: NodeId) -> None:
        if self._seen.pop(device, None) is not None:
            self._started().add(SERVER, Forget(device))

    def _share(self, payload: Payload) -> Payload:
        """With tensors that workers see, if they came from a checkpoint."""
        if type(payload.value) is not dict:
            return payload
        shared = self._given.get(payload.id)
        if shared is None:
            shared = self._given[payload.id] = self._stored(payload.value)
        return replace(payload, value=shared)

    def _stored(self, tensors: Tensors) -> SharedTensors:
        value = self._free.new_value()
        value.place = self._region.store(tensors)
        return value

    def _started(self) -> Schedule:
        """Workers are forked when there is a plan, which they then have, too."""
        if self._schedule is None:
            if self.plan is None:
                raise InvariantBroken("there is work before there is a plan")
            self._pool = self._engage(self.plan)
            self._schedule = Schedule(self._pool, self._workers, self._queues, self._free)
            if self._restored is not None:
                faults = self._schedule.ask(SERVER, self._restored).faults
                self._restored = None
                for device, fault in faults.items():
                    self._seen[device] = known = Item(0, SERVER, Forget(device))
                    known.reply = Done(0, fault=fault)
        return self._schedule

    def _engage(self, plan: Plan) -> WorkerPool:
        return WorkerPool(self._workers, self._memory, self._workload, plan, self._build)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.end()
            self._pool = self._schedule = None

    # ---- values ------------------------------------------------------------------------------

    def inspect(self, device: NodeId, update: ModelUpdate) -> Inspection:
        value = update.data.value
        if not isinstance(value, SharedTensors):
            return _Inspected(self._started(), self._judged(device, update), self._seen.get(device))
        assert isinstance(value.maker, Item)
        return _Inspected(self._started(), value.maker, self._seen.get(device))

    def _judged(self, device: NodeId, update: ModelUpdate) -> Item:
        """An update from before a checkpoint, sent again."""
        if self._checker is None:
            assert self.plan is not None
            self._checker = self._build(device)
            self._checker.execute(Prepare(self.plan.to_json()), update.data.id)
        item = Item(0, device, Reset())
        item.reply = Done(0, fault=self._checker.inspect(update.data))
        return item

    def admit(self, message: Message) -> None:
        """A worker compares the form of every result with the plan."""

    def faults(self) -> Mapping[NodeId, ProtocolViolation]:
        schedule, found = self._started(), dict[NodeId, ProtocolViolation]()
        for device in sorted(self._seen):
            item = self._seen[device]
            schedule.wait(lambda item=item: item.done)  # type: ignore[misc]
            if isinstance(item.result.fault, ProtocolViolation):
                found[device] = item.result.fault
        for device in found:
            self._forget(device)
        return found

    def evaluate(self) -> Metrics:
        weights = self._snapshot()
        batches = len(self._workload.evaluation_batches)
        share = max(1, batches // (self._workers * _SHARES))
        orders = [
            EvaluateBatches(first, min(first + share, batches), weights)
            for first in range(0, batches, share)
        ]
        replies = self._started().share_out(orders)
        return self._workload.joined(sums for reply in replies for sums in reply.sums)

    def _snapshot(self) -> SharedTensors:
        schedule, value = self._started(), self._free.new_value()
        item = schedule.add(SERVER, Snapshot(), value=value)
        schedule.wait(lambda: item.done)
        return value

    def export(self) -> Tensors:
        """The weights of the whole model."""
        weights = self._snapshot()
        weights.show(self._memory)
        return copy_of(weights)

    def settle(self) -> None:
        if self._schedule is not None:
            self._schedule.wait(self._schedule.all_done)
        for value in self._free.values():
            value.show(self._memory)

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self, node: NodeId) -> tuple[dict[str, object], Tensors]:
        """What the node's engine would save; after `settle`."""
        queue = self._queues[node]
        if queue.error is not None:  # a device that cannot go on
            return {"plan": ""}, {}
        if self._schedule is not None and queue.loaded:
            reply = self._schedule.ask(node, Save())
            assert reply.book is not None
            assert reply.result is not None
            value = self._free.new_value()
            value.place = reply.result
            value.show(self._memory)
            return dict(reply.book), copy_of(value)
        if self._restored is not None and node == SERVER:
            return dict(self._restored.book), dict(self._restored.tensors)
        if queue.aside is None:
            return {"plan": ""}, {}
        book, tensors = queue.aside
        assert isinstance(tensors, SharedTensors)
        tensors.show(self._memory)
        return dict(book), dict(tensors)

    def restore(self, node: NodeId, book: Book, tensors: dict[str, Tensor]) -> None:
        """Before the first job."""
        if node != SERVER:
            self._queues[node].aside = Aside(book, self._stored(tensors)) if book["plan"] else None
        elif book["plan"]:
            self._plans.restore(book, tensors)
            self._restored = Restore(book, self._stored(tensors))


@dataclass(frozen=True)
class _Inspected:
    schedule: Schedule
    update: Item
    batches: Item | None  # the last of the server's steps on what the device has sent

    def check(self) -> None:
        update, batches = self.update, self.batches
        self.schedule.wait(lambda: update.done and (batches is None or batches.done))
        if update.result.error is not None:
            raise_if_not_of_the_node(update.result.error)
            raise LateFailure(update.result.error)
        for found in (update.result.fault, batches.result.fault if batches else None):
            if found is not None:
                raise found


class WorkedElsewhere:
    """A node's engine, as far as this process has one."""

    def __init__(self, executor: Processes, node: NodeId) -> None:
        self._executor = executor
        self._node = node

    @property
    def plan(self) -> Plan | None:
        return self._executor.plan

    def export(self) -> Tensors:
        return self._executor.export()

    def save(self) -> tuple[dict[str, object], Tensors]:
        return self._executor.save(self._node)

    def restore(self, state: Mapping[str, object], tensors: dict[str, Tensor]) -> None:
        self._executor.restore(self._node, state, tensors)
