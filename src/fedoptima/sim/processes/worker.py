"""A worker process: executes what it is sent, the server's jobs first.

It is forked from the process that drives, so it has the data, the model and all code already.
"""

from __future__ import annotations

import ctypes
import gc
import pickle
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

import torch

from fedoptima.core.errors import FedOptimaError, ProtocolViolation, RunFailed
from fedoptima.core.jobs import ExportModel, Job, LoadModel, source_of
from fedoptima.core.plan import Plan
from fedoptima.core.types import SERVER, NodeId, Payload
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.evaluation import Tally
from fedoptima.engine.evaluator import Evaluator
from fedoptima.engine.flat import FlatTensors, Layout, form_of
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from fedoptima.engine.shared_learners import SharedLearners
from fedoptima.engine.workload import Workload
from fedoptima.sim.processes.freed_memory import FreedMemory
from fedoptima.sim.processes.messages import (
    Declared,
    Done,
    EvaluateBatches,
    Forget,
    Order,
    Release,
    Reset,
    Restore,
    Save,
    Snapshot,
)
from fedoptima.sim.processes.shared_memory import Place, Region, SharedMemory, attach

BuildDevice = Callable[[NodeId], DeviceEngine]
REPORT_AFTER = 0.015  # seconds: what is done in less is reported together


def work(
    connection: Connection,
    others: Iterable[Connection],
    memory: SharedMemory,
    region: int,
    workers: int,
    workload: Workload,
    plan: Plan,
    build: BuildDevice,
) -> None:
    """The main function of a worker process. ``others``: ends of pipes that are not its own."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all processes
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent()
    for other in others:  # else the end of the driving process would not end this one's pipe
        other.close()
    gc.freeze()  # memory that is looked at is no longer shared with the driving process
    torch.set_num_threads(1)
    attach(memory)
    with suppress(EOFError, OSError):  # the driving process has ended
        worker = _Worker(connection, memory, memory.region(region), workload, plan, build)
        worker.merges_with(workers)
        worker.run()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class _Worker:
    def __init__(
        self,
        connection: Connection,
        memory: SharedMemory,
        region: Region,
        workload: Workload,
        plan: Plan,
        build: BuildDevice,
    ) -> None:
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._memory = memory
        self._region = region
        self._workload = workload
        self._build = build
        self._server = ServerEngine(workload, deferred=True)
        self._engines: dict[NodeId, DeviceEngine] = {}
        self._learners = SharedLearners()
        self._aside: dict[NodeId, Tensors] = {}  # where the state of devices in a round came from
        self._buffers: dict[NodeId, Place | None] = {}  # where their weights are
        self._evaluator = Evaluator(workload, plan)
        self._broken: dict[NodeId, Exception] = {}  # devices that cannot go on, and why
        self._first: deque[Order] = deque()  # the server's jobs, and evaluations
        self._orders: deque[Order] = deque()
        self._done: list[Done] = []
        self._freed = FreedMemory()

    def merges_with(self, threads: int) -> None:
        """At a barrier, the only merges of many updates, the other workers have nothing to do."""
        self._server.merge_threads = threads

    def run(self) -> None:
        reported = time.monotonic()
        while True:
            self._receive()
            order = (self._first or self._orders).popleft()
            began = time.monotonic()
            done = self._execute(order)
            now = time.monotonic()
            self._done.append(done._replace(seconds=now - began))
            if not (self._first or self._orders) or now - reported >= REPORT_AFTER:
                self._report()
                reported = now

    def _receive(self) -> None:
        while not (self._first or self._orders) or self._poll.poll(0):
            orders: list[Order] = pickle.loads(self._connection.recv_bytes())
            for order in orders:
                # A device that is to be released has nothing else to do here.
                urgent = order.node == SERVER or isinstance(order.work, Release)
                (self._first if urgent else self._orders).append(order)

    def _report(self) -> None:
        self._connection.send_bytes(pickle.dumps(self._done))
        self._done.clear()

    def _execute(self, order: Order) -> Done:
        try:
            if order.node == SERVER:
                return self._for_server(order)
            if order.begins or isinstance(order.work, Reset):
                self._broken.pop(order.node, None)
            elif order.node in self._broken:
                return Done(order.number, error=self._broken[order.node])
            return self._for_device(order)
        except Exception as error:
            portable = self._broken[order.node] = _portable(error)
            return Done(order.number, error=portable)

    # ---- the server --------------------------------------------------------------------------

    def _for_server(self, order: Order) -> Done:
        number, server = order.number, self._server
        match order.work:
            case Snapshot():
                return Done(number, self._region.store(server.weights(), order.buffer))
            case EvaluateBatches():
                return Done(number, sums=tuple(self._evaluate(order.work)))
            case Forget(device):
                if server.deferred is not None:
                    server.deferred.forget(device)
                return Done(number)
            case Restore(book, tensors):
                server.restore(book, {name: tensor.clone() for name, tensor in tensors.items()})
                faults = {} if server.deferred is None else server.deferred.faults()
                return Done(number, faults=faults)
            case Save():
                book, tensors = server.save()
                return Done(number, self._region.store(tensors), book=book)
            case Reset() | Release():
                raise AssertionError("a server is not reset")
        place, text = self._result(order, order.work, server)
        return Done(number, place, fault=self._noted(order.work), text=text)

    def _noted(self, job: Job) -> Exception | None:
        """What is wrong with the batches of the device that this job may have shown to be bad."""
        device = source_of(job)
        if device is not None and self._server.deferred is not None:
            try:
                self._server.deferred.of(device).check()
            except ProtocolViolation as error:
                return error
        return None

    def _evaluate(self, batches: EvaluateBatches) -> Iterable[Tally]:
        sides = self._evaluator.load(batches.weights)
        try:
            for number in range(batches.first, batches.last):
                yield self._workload.evaluate_batch(sides, number)
        finally:
            self._evaluator.give_back(sides)

    # ---- devices -----------------------------------------------------------------------------

    def _for_device(self, order: Order) -> Done:
        engine = self._engine(order)
        match order.work:
            case Reset():
                self._forget(order.node, engine)
                return Done(order.number)
            case LoadModel():
                self._buffers.setdefault(order.node, order.buffer)
                self._result(order, order.work, engine)
                return Done(order.number, self._buffers[order.node])
            case Save():
                book, tensors = engine.save()
                return Done(order.number, self._region.store(tensors), book=book)
            case Release():
                book, tensors = engine.save()
                place = self._region.store(tensors)
                self._forget(order.node, engine)
                return Done(order.number, book=book, aside=place)
            case Snapshot() | EvaluateBatches() | Forget() | Restore():
                raise AssertionError("only a server does this")
        if not isinstance(order.work, ExportModel):
            return Done(order.number, self._result(order, order.work, engine)[0])
        assert order.declared is not None
        outcome = engine.execute(order.work, order.declared.result)
        _compare(order.declared, outcome.result, outcome.samples, outcome.text)
        fault = engine.inspect(outcome.result)
        if order.work.keep:  # its weights stay where they are
            place = self._region.store(unpack(outcome.result), order.buffer)
            return Done(order.number, place, fault=fault)
        own = self._buffers.pop(order.node, None)
        place = self._region.store(unpack(outcome.result), own, order.buffer)
        del outcome
        book, aside = self._set_aside(order.node, engine)
        self._freed.give_back()
        return Done(order.number, place, fault=fault, book=book, aside=aside)

    def _engine(self, order: Order) -> DeviceEngine:
        """The device's engine, with its state."""
        engine = self._engines.get(order.node)
        if engine is None:
            engine = self._engines[order.node] = self._build(order.node)
            engine.share(self._learners, partial(self._memory_for, order.node))
        if order.begins:
            self._buffers.pop(order.node, None)
            if order.aside is None:
                engine.reset()
            else:
                self._aside[order.node] = order.aside.tensors
                engine.take_up(*order.aside)
        return engine

    def _memory_for(self, node: NodeId, layout: Layout) -> FlatTensors:
        """Shared memory for a device's weights: what it exports is there without a copy."""
        self._buffers[node], tensors = self._region.reserve(layout, self._buffers[node])
        return tensors

    def _forget(self, node: NodeId, engine: DeviceEngine) -> None:
        engine.reset()
        self._aside.pop(node, None)
        self._buffers.pop(node, None)

    def _set_aside(
        self, node: NodeId, engine: DeviceEngine
    ) -> tuple[dict[str, object], Place | None]:
        """Tensors that were taken up, and changed in place, are where they must be already."""
        book, tensors = engine.set_aside()
        before = self._aside.pop(node, {})
        others = {
            name: tensor for name, tensor in tensors.items() if tensor is not before.get(name)
        }
        if before.keys() != tensors.keys() or any(
            form_of({name: before[name]}) != form_of({name: tensor})
            for name, tensor in others.items()
        ):
            return book, self._region.store(tensors)
        for name, tensor in others.items():
            before[name].copy_(tensor)
        return book, None

    def _result(
        self, order: Order, job: Job, engine: ServerEngine | DeviceEngine
    ) -> tuple[Place | None, str]:
        declared = order.declared
        assert declared is not None
        outcome = engine.execute(job, declared.result)
        _compare(declared, outcome.result, outcome.samples, outcome.text)
        if outcome.result.value is None:
            return None, outcome.text
        return self._region.store(unpack(outcome.result), order.buffer), outcome.text


def _compare(declared: Declared, result: Payload, samples: int, text: str) -> None:
    if (result.nbytes, samples) != (declared.nbytes, declared.samples) or (
        declared.text is not None and text != declared.text
    ):
        raise RunFailed(
            f"{declared.result} has {result.nbytes} bytes and {samples} samples, but the plan says "
            f"{declared.nbytes} and {declared.samples}: what this model returns depends on "
            "its values, so it cannot be trained ahead of the clock; use workers = 1"
        )


def _portable(error: Exception) -> Exception:
    """The error itself if it can be sent, with what the traceback says."""
    if not isinstance(error, FedOptimaError):
        error.add_note("in a worker process:\n" + traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunFailed(f"{type(error).__name__}: {error}")
    return error
