"""Which worker does what next.

Each node's jobs come in their order, and none before the payloads that it uses. The server's come
first, with its own worker; which device a worker goes on with is said in `choice`. A worker is sent
little at a time: what it has been sent, no other can do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    LoadModel,
    Rebase,
    SkipStep,
)
from fedoptima.core.types import SERVER, NodeId
from fedoptima.engine.payloads import Tensors
from fedoptima.sim.processes.choice import Devices
from fedoptima.sim.processes.messages import Aside, Declared, Done, Order, Release, Reset, Work
from fedoptima.sim.processes.queues import Item, Queue
from fedoptima.sim.processes.result_buffers import ResultBuffers
from fedoptima.sim.processes.shared_memory import FreeMemory, Place, SharedTensors
from fedoptima.sim.processes.worker_pool import WorkerPool

_AHEAD = 0.01  # seconds: a worker with less to do is always sent more
_FAR_AHEAD = 0.04  # the same while there is much to do: fewer, longer messages
_SHARE = 0.125  # of all that is to be done; at the end no worker is to be left with much
_AT_LEAST = 2  # orders of devices that it has already, however long they take
_PACE = 0.003  # seconds that work takes, as long as nothing is known about it
_LATEST = 0.2  # what the latest time counts in the mean
_MOST_JOBS = 2000  # that the clock may be ahead
_MOST_BYTES = 2**29  # of what they work on
_FIRST = 0  # the worker that has the server


class Schedule:
    def __init__(
        self,
        pool: WorkerPool,
        workers: int,
        queues: Mapping[NodeId, Queue],
        free: FreeMemory,
    ) -> None:
        self._pool = pool
        self._queues = queues
        self._free = free
        self._buffers = ResultBuffers(free)
        self._server = queues[SERVER]
        self._server.worker, self._server.loaded = _FIRST, True
        self._left = [0.0] * workers  # seconds of work that is not done
        self._orders = [0] * workers  # that are not done
        self._pace: dict[type, float] = {}  # seconds that a kind of work takes
        self._mean = _PACE  # of all
        self._ahead = _AHEAD
        self._under_way: dict[int, Item] = {}
        self._devices = Devices(workers, queues)
        self._moves: dict[int, int] = {}  # for which worker a device is released, by order
        self._number = 0
        self._jobs = self._bytes = 0  # not done
        self.error: Exception | None = None  # that the server's work has raised

    def add(
        self,
        node: NodeId,
        work: Work,
        inputs: Iterable[SharedTensors] = (),
        declared: Declared | None = None,
        value: SharedTensors | None = None,
    ) -> Item:
        self._work_until(lambda: self._jobs < _MOST_JOBS and self._bytes < _MOST_BYTES)
        item = self._item(node, work, declared, value)
        for needed in inputs:
            if needed.failed:
                item.void = True
            elif needed.place is None:
                needed.waiting.append(item)
                item.needs.append(needed)
                item.missing += 1
            else:
                item.cost += needed.place.nbytes
        item.cost += declared.nbytes if declared else 0
        item.queued = True
        self._jobs += 1
        self._bytes += item.cost
        queue = self._queues[node]
        queue.items.append(item)
        if len(queue.items) == 1:
            self._devices.look_at(queue)
        if min(self._left) < _AHEAD or min(self._orders) < _AT_LEAST:
            self._pool.receive(self._take, wait=False)
            self._dispatch(waits=False)
        return item

    def wait(self, over: Callable[[], bool]) -> None:
        """Until ``over``. What the server's work has raised is raised here."""
        self._work_until(lambda: self.error is not None or over())
        if self.error is not None:
            raise self.error

    def all_done(self) -> bool:
        return not self._jobs

    def ask(self, node: NodeId, work: Work) -> Done:
        """The worker that has the node, which has nothing else to do."""
        worker = self._queues[node].worker
        assert worker is not None
        item = self._item(node, work)
        self._send(worker, [(item, Order(item.number, node, work))])
        self.wait(lambda: item.done)
        return _sound(item.result)

    def share_out(self, works: Sequence[Work]) -> list[Done]:
        """Have urgent work done by all workers, each as much as it can."""
        waiting, items, busy = deque(works), list[Item](), dict[int, Item]()
        while waiting or busy:
            for worker in range(len(self._left)):
                if waiting and worker not in busy:
                    item = busy[worker] = self._item(SERVER, waiting.popleft())
                    items.append(item)
                    assert item.work is not None
                    self._send(worker, [(item, Order(item.number, SERVER, item.work))])
            self._progress()
            busy = {worker: item for worker, item in busy.items() if not item.done}
        return [_sound(item.result) for item in items]

    def _item(
        self,
        node: NodeId,
        work: Work,
        declared: Declared | None = None,
        value: SharedTensors | None = None,
    ) -> Item:
        self._number += 1
        return Item(self._number, node, work, declared, value)

    # ---- to the workers ----------------------------------------------------------------------

    def _work_until(self, over: Callable[[], bool]) -> None:
        """No more jobs come before."""
        if not over():
            self._dispatch(waits=True)
        while not over():
            self._progress()

    def _progress(self) -> None:
        """Wait for a worker, and send what can be done then."""
        if self._under_way:
            self._pool.receive(self._take, wait=True)
        self._dispatch(waits=True)

    def _dispatch(self, *, waits: bool) -> None:
        """``waits``: the driver does, so no more jobs come before some are done."""
        orders: list[tuple[Item, Order]] = []
        while self._server.ready:
            item = self._server.items.popleft()
            if item.void:  # a batch that could not be computed trains nothing
                self._finish(item, Done(item.number))
            else:
                assert item.work is not None
                buffer = self._buffers.lend(self._server, item)
                order = Order(item.number, SERVER, item.work, item.declared, buffer=buffer)
                orders.append((item, order))
        if orders:
            self._send(_FIRST, orders)
        waiting = self._mean * (self._jobs - len(self._under_way)) / len(self._left)
        self._ahead = max(_AHEAD, min(_FAR_AHEAD, waiting * _SHARE))
        # The server's worker last: it begins a round only if all others have enough to do.
        for worker in reversed(range(len(self._left))):
            orders = []
            while self._needs_more(worker):
                begins = self._left[worker] < self._ahead
                queue, last = self._devices.next_for(worker, begins=begins, waits=waits)
                if queue is None:
                    if waits and begins:
                        self._move_to(worker)
                    break
                orders += self._take_jobs(worker, queue, last)
            if orders:
                self._pool.send(worker, [order for _, order in orders])

    def _needs_more(self, worker: int) -> bool:
        return self._left[worker] < self._ahead or self._orders[worker] < _AT_LEAST

    def _move_to(self, worker: int) -> None:
        """Have a device released for a worker that has nothing to do."""
        if worker in self._moves.values():
            return
        busy = {number for number, left in enumerate(self._left) if left >= _AHEAD}
        queue = self._devices.to_move(worker, busy)
        if queue is None:
            return
        assert queue.worker is not None
        item = self._item(queue.node, Release())
        self._moves[item.number] = worker
        queue.closing = True
        self._devices.look_at(queue)
        self._send(queue.worker, [(item, Order(item.number, queue.node, Release()))])

    def _take_jobs(self, worker: int, queue: Queue, last: Item | None) -> list[tuple[Item, Order]]:
        """As many as the worker is sent now; not those after ``last``."""
        orders: list[tuple[Item, Order]] = []
        enough = False
        while queue.ready:
            work = queue.items[0].work
            # With its forward pass: what that keeps is large, and cannot be moved.
            if enough and not isinstance(work, AuxiliaryStep | SkipStep):
                break
            item = queue.items.popleft()
            assert work is not None
            if (item.void or queue.error is not None) and not isinstance(work, Reset):
                item.sent = True
                self._finish(item, Done(item.number, error=queue.error))
                continue
            begins = not queue.loaded
            order = Order(
                *(item.number, queue.node, work, item.declared),
                *(begins, queue.aside if begins else None, self._buffers.lend(queue, item)),
            )
            queue.worker, queue.loaded = worker, True
            queue.closing = _ends_round(work)
            if isinstance(work, LoadModel | Rebase):
                queue.received, queue.passes = work, 0
            queue.passes += _passes(work)
            self._sent(worker, item)
            orders.append((item, order))
            enough = enough or item is last or not self._needs_more(worker)
        self._devices.look_at(queue)
        return orders

    def _send(self, worker: int, orders: list[tuple[Item, Order]]) -> None:
        for item, _ in orders:
            self._sent(worker, item)
        self._pool.send(worker, [order for _, order in orders])

    def _sent(self, worker: int, item: Item) -> None:
        self._under_way[item.number] = item
        if item.queued:
            self._queues[item.node].under_way += 1
        item.sent, item.seconds = True, self._pace.get(type(item.work), _PACE)
        self._left[worker] += item.seconds
        self._orders[worker] += 1

    # ---- from the workers --------------------------------------------------------------------

    def _take(self, worker: int, replies: list[Done]) -> None:
        for reply in replies:
            item = self._under_way.pop(reply.number)
            self._left[worker] -= item.seconds
            self._orders[worker] -= 1
            if item.queued:
                self._queues[item.node].under_way -= 1
            self._learn_pace(type(item.work), reply.seconds)
            self._finish(item, reply)

        if not self._under_way:
            self._left = [0.0] * len(self._left)  # what is added and taken away leaves a rest

    def _learn_pace(self, kind: type, seconds: float) -> None:
        before = self._pace.get(kind, seconds)
        self._pace[kind] = before + (seconds - before) * _LATEST
        self._mean += (seconds - self._mean) * _LATEST / 8

    def _finish(self, item: Item, reply: Done) -> None:
        work, value = item.work, item.value
        item.work = item.value = None
        item.needs = []
        item.reply = reply
        queue = self._queues[item.node]
        if isinstance(work, Release):
            self._released(queue, item.number, _sound(reply))
        if not item.queued:
            return
        self._jobs -= 1
        self._bytes -= item.cost
        if reply.error is not None and queue.error is None:
            queue.error = reply.error
            if item.node == SERVER:
                self.error = reply.error
        if value is not None:
            self._buffers.used(queue, item, work, reply.result)
            self._provide(value, reply.result)
        elif isinstance(work, LoadModel) and reply.result is not None:
            self._buffers.loaded(queue, work, reply.result)
        if work is not None and _ends_round(work):
            self._round_over(queue, work, reply)

    def _provide(self, value: SharedTensors, place: Place | None) -> None:
        """Jobs that wait for the value can go on."""
        waiting, value.waiting = value.waiting, []
        value.failed = place is None
        value.place = place
        for item in waiting:
            item.missing -= 1
            item.void = item.void or value.failed
            queue = self._queues[item.node]
            if queue.items and queue.items[0] is item:
                self._devices.look_at(queue)

    def _released(self, queue: Queue, number: int, reply: Done) -> None:
        assert reply.book is not None
        queue.aside = Aside(reply.book, self._tensors_aside(queue, reply.aside))
        self._buffers.give_back(queue)
        self._devices.part(queue)
        queue.worker = self._moves.pop(number)
        self._devices.look_at(queue)

    def _round_over(self, queue: Queue, work: Work, reply: Done) -> None:
        queue.closing, queue.passes = False, 0
        if reply.error is None:
            self._devices.part(queue)
            queue.received = None
            if isinstance(work, Reset):
                self._buffers.give_back(queue)
                queue.aside = queue.error = None
            elif reply.book is not None:
                queue.aside = Aside(reply.book, self._tensors_aside(queue, reply.aside))
        self._devices.look_at(queue)

    def _tensors_aside(self, queue: Queue, place: Place | None) -> Tensors:
        if place is None:  # they are where they were
            assert queue.aside is not None
            return queue.aside.tensors
        tensors = self._free.new_value()
        tensors.place = place
        return tensors


def _passes(work: Work) -> int:
    """Forward passes that wait for their backward pass, more than before."""
    return isinstance(work, Forward) - isinstance(work, AuxiliaryStep | SkipStep | Backward)


def _ends_round(work: Work) -> bool:
    """After it a device has no model: any worker may go on with it."""
    return isinstance(work, Reset) or (isinstance(work, ExportModel) and not work.keep)


def _sound(reply: Done) -> Done:
    if reply.error is not None:
        raise reply.error
    return reply
