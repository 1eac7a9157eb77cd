"""Which worker does what next.

Each node's jobs come in their order, and none before the payloads that it uses. What the server
waits for comes first, in the order in which it needs it: its steps can only be taken one after
another, and nothing else may be left to do at the end but them. Apart from that a worker finishes
the rounds that it has begun before it begins another, so that few devices are in the middle of one
and take up memory. A worker is sent little at a time: what it has been sent, no other can do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from fedoptima.core.jobs import ExportModel, LoadModel, Prepare
from fedoptima.core.types import SERVER, NodeId
from fedoptima.engine.payloads import Tensors
from fedoptima.sim.processes.crew import Crew
from fedoptima.sim.processes.messages import Aside, Declared, Done, Order, Reset, Work
from fedoptima.sim.processes.queues import Item, Queue
from fedoptima.sim.processes.shared_memory import FreeMemory, Place, SharedTensors

_AHEAD = 0.01  # seconds: a worker with less to do is sent more
_AT_LEAST = 2  # orders of devices that it has already, however long they take
_PACE = 0.003  # seconds that work takes, as long as nothing is known about it
_LATEST = 0.2  # what the latest time counts in the mean
_MOST_JOBS = 2000  # that the clock may be ahead
_MOST_BYTES = 2**29  # of what they work on
_LOOKED_AT = 8  # devices that could begin a round
_WANTED = 32  # of the server's jobs
_FIRST_JOBS = (Prepare, LoadModel)  # of a round
_FIRST = 0  # the worker that has the server


class Schedule:
    def __init__(
        self,
        crew: Crew,
        workers: int,
        queues: Mapping[NodeId, Queue],
        new_value: Callable[[], SharedTensors],
        free: FreeMemory,
    ) -> None:
        self._crew = crew
        self._queues = queues
        self._new_value = new_value
        self._memory = free
        self._server = queues[SERVER]
        self._server.worker = _FIRST
        self._left = [0.0] * workers  # seconds of work that is not done
        self._orders = [0] * workers  # that are not done
        self._pace: dict[type, float] = {}  # seconds that a kind of work takes
        self._under_way: dict[int, Item] = {}
        self._ready: list[dict[NodeId, Queue]] = [{} for _ in range(workers)]  # devices they have
        self._free: dict[NodeId, Queue] = {}  # devices ready for any worker
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
        while self._jobs >= _MOST_JOBS or self._bytes >= _MOST_BYTES:
            self._step(wait=True)
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
            self._look_at(queue)
        if min(self._left) < _AHEAD or min(self._orders) < _AT_LEAST:
            self._step(wait=False)
        return item

    def wait(self, over: Callable[[], bool]) -> None:
        """Until ``over``. What the server's work has raised is raised here."""
        while self.error is None and not over():
            self._step(wait=True)
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
            self._step(wait=True)
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

    def _step(self, *, wait: bool) -> None:
        if not wait:
            self._crew.receive(self._take, wait=False)
        self._dispatch(wait)
        if wait and self._under_way:
            self._crew.receive(self._take, wait=True)
            self._dispatch(wait)

    def _dispatch(self, waits: bool) -> None:
        """``waits``: the driver does, so no more jobs come before some are done."""
        orders: list[tuple[Item, Order]] = []
        while self._server.ready:
            item = self._server.items.popleft()
            if item.void:  # a batch that could not be computed trains nothing
                self._finish(item, Done(item.number))
            else:
                assert item.work is not None
                room = self._room_for(item)
                order = Order(item.number, SERVER, item.work, item.declared, room=room)
                orders.append((item, order))
        if orders:
            self._send(_FIRST, orders)
        # The server's worker last: it begins a round only if all others have enough to do.
        for worker in reversed(range(len(self._left))):
            orders = []
            while self._needs_more(worker):
                queue, last = self._next_for(worker, waits)
                if queue is None:
                    break
                orders += self._take_jobs(worker, queue, last)
            if orders:
                self._crew.send(worker, [order for _, order in orders])

    def _needs_more(self, worker: int) -> bool:
        return self._left[worker] < _AHEAD or self._orders[worker] < _AT_LEAST

    def _next_for(self, worker: int, waits: bool) -> tuple[Queue | None, Item | None]:
        """A device whose jobs a worker can do next; up to which one, if the server waits for it."""
        begins = self._left[worker] < _AHEAD
        for wanted in self._wanted():
            queue = self._queues[wanted.node]
            if queue.ready and (queue.worker == worker or (queue.worker is None and begins)):
                return queue, wanted
        own = next(iter(self._ready[worker].values()), None)
        return own or (self._fresh(waits) if begins else None), None

    def _wanted(self) -> Iterator[Item]:
        """Jobs that were not sent yet and whose results the server needs next."""
        for item in islice(self._server.items, _WANTED):
            if item.missing:
                for value in item.needs:
                    maker = value.maker
                    if isinstance(maker, Item) and not maker.sent and maker.node != SERVER:
                        yield maker

    def _fresh(self, waits: bool) -> Queue | None:
        """A device that could begin a round, with more to do than to load the model."""
        for _, queue in zip(range(_LOOKED_AT), self._free.values(), strict=False):
            if waits or len(queue.items) > 1 or not isinstance(queue.items[0].work, _FIRST_JOBS):
                return queue
        return None

    def _take_jobs(self, worker: int, queue: Queue, last: Item | None) -> list[tuple[Item, Order]]:
        """As many as the worker is sent now; not those after ``last``."""
        orders: list[tuple[Item, Order]] = []
        while queue.ready and self._needs_more(worker):
            item = queue.items.popleft()
            work = item.work
            assert work is not None
            if (item.void or queue.error is not None) and not isinstance(work, Reset):
                item.sent = True
                self._finish(item, Done(item.number, error=queue.error))
                continue
            begins = queue.worker is None
            order = Order(
                *(item.number, queue.node, work, item.declared),
                *(begins, queue.aside if begins else None, self._room_for(item)),
            )
            queue.worker = worker
            queue.closing = isinstance(work, ExportModel | Reset)
            if isinstance(work, LoadModel):
                queue.received = work
            self._sent(worker, item)
            orders.append((item, order))
            if item is last:
                break
        self._look_at(queue)
        return orders

    def _send(self, worker: int, orders: list[tuple[Item, Order]]) -> None:
        for item, _ in orders:
            self._sent(worker, item)
        self._crew.send(worker, [order for _, order in orders])

    def _sent(self, worker: int, item: Item) -> None:
        self._under_way[item.number] = item
        item.sent, item.seconds = True, self._pace.get(type(item.work), _PACE)
        self._left[worker] += item.seconds
        self._orders[worker] += 1

    def _look_at(self, queue: Queue) -> None:
        """Its first job, its worker or its state has changed."""
        if queue.node == SERVER:
            return
        self._free.pop(queue.node, None)
        if queue.worker is None:
            if queue.ready:
                self._free[queue.node] = queue
        elif queue.ready:
            self._ready[queue.worker][queue.node] = queue
        else:
            self._ready[queue.worker].pop(queue.node, None)

    # ---- from the workers --------------------------------------------------------------------

    def _take(self, worker: int, replies: list[Done]) -> None:
        for reply in replies:
            item = self._under_way.pop(reply.number)
            self._left[worker] -= item.seconds
            self._orders[worker] -= 1
            self._learn_pace(type(item.work), reply.seconds)
            self._finish(item, reply)

        if not self._under_way:
            self._left = [0.0] * len(self._left)  # what is added and taken away leaves a rest

    def _learn_pace(self, kind: type, seconds: float) -> None:
        before = self._pace.get(kind, seconds)
        self._pace[kind] = before + (seconds - before) * _LATEST

    def _finish(self, item: Item, reply: Done) -> None:
        work, value = item.work, item.value
        item.work = item.value = None
        item.needs = []
        item.reply = reply
        if not item.queued:
            return
        self._jobs -= 1
        self._bytes -= item.cost
        queue = self._queues[item.node]
        if reply.error is not None and queue.error is None:
            queue.error = reply.error
            if item.node == SERVER:
                self.error = reply.error
        if value is not None:
            self._settle_room(item, work, reply.result)
            self._provide(value, reply.result)
        if isinstance(work, ExportModel | Reset):
            self._round_over(queue, work, reply)

    def _room_for(self, item: Item) -> Place | None:
        if item.value is not None:
            item.room = self._memory.room_for(_kind(item.work, item.declared))
        return item.room

    def _settle_room(self, item: Item, work: Work | None, place: Place | None) -> None:
        if item.room is not None and (place is None or place.offset != item.room.offset):
            self._memory.add(*item.room)  # it was not used
        if place is not None:
            self._memory.learn(_kind(work, item.declared), place.nbytes)

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
                self._look_at(queue)

    def _round_over(self, queue: Queue, work: Work, reply: Done) -> None:
        queue.closing = False
        if reply.error is None:
            if queue.worker is not None:
                self._ready[queue.worker].pop(queue.node, None)
            queue.worker = queue.received = None
            if isinstance(work, Reset):
                queue.aside = queue.error = None
            elif reply.book is not None:
                queue.aside = Aside(reply.book, self._tensors_aside(queue, reply.aside))
        self._look_at(queue)

    def _tensors_aside(self, queue: Queue, place: Place | None) -> Tensors:
        if place is None:  # they are where they were
            assert queue.aside is not None
            return queue.aside.tensors
        tensors = self._new_value()
        tensors.place = place
        return tensors


def _kind(work: Work | None, declared: Declared | None) -> object:
    """Results that take the same memory."""
    return type(work), declared.nbytes if declared else 0


def _sound(reply: Done) -> Done:
    if reply.error is not None:
        raise reply.error
    return reply
