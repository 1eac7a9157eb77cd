"""Which device a worker goes on with.

What the server waits for comes first, in the order in which it needs it: its steps can only be
taken one after another, and nothing else may be left to do at the end but them. Apart from that a
worker finishes the rounds that it has begun before it begins another, so that few devices are in
the middle of one and take up memory. A worker that has nothing left to do takes over a device from
one that is busy with others: what rounds cost, and how much the server's worker can do besides,
is not known when they begin.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import islice

from fedoptima.core.jobs import LoadModel, Prepare
from fedoptima.core.types import SERVER, NodeId
from fedoptima.sim.processes.queues import Item, Queue

_LOOKED_AT = 8  # devices that could begin a round
_WANTED = 32  # of the server's jobs
_FIRST_JOBS = (Prepare, LoadModel)  # of a round


class Devices:
    """Those that have something to do, by the worker that has them."""

    def __init__(self, workers: int, queues: Mapping[NodeId, Queue]) -> None:
        self._queues = queues
        self._server = queues[SERVER]
        self._ready: list[dict[NodeId, Queue]] = [{} for _ in range(workers)]
        self._free: dict[NodeId, Queue] = {}  # ready for any worker

    def look_at(self, queue: Queue) -> None:
        """Its first job or its state has changed."""
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

    def part(self, queue: Queue) -> None:
        """Any worker may have it now."""
        if queue.worker is not None:
            self._ready[queue.worker].pop(queue.node, None)
            queue.last_worker = queue.worker
        queue.worker, queue.closing, queue.loaded = None, False, False

    def next_for(
        self, worker: int, *, begins: bool, waits: bool
    ) -> tuple[Queue | None, Item | None]:
        """A device whose jobs a worker can do next; up to which one, if the server waits for it.

        ``begins``: it may begin a round that nobody waits for. ``waits``: no more jobs come before
        some are done.
        """
        for wanted in self._wanted():
            queue = self._queues[wanted.node]
            if queue.ready and queue.worker in (worker, None):
                return queue, wanted
        own = next(iter(self._ready[worker].values()), None)
        return own or (self._fresh(worker, waits) if begins else None), None

    def _wanted(self) -> Iterator[Item]:
        """Jobs that were not sent yet and whose results the server needs next."""
        for item in islice(self._server.items, _WANTED):
            if item.missing:
                for value in item.needs:
                    maker = value.maker
                    if isinstance(maker, Item) and not maker.sent and maker.node != SERVER:
                        yield maker

    def _fresh(self, worker: int, waits: bool) -> Queue | None:
        """A device that could begin a round, with more to do than to load the model; one that this
        worker had before, if there is a choice."""
        found = [
            queue
            for queue in islice(self._free.values(), _LOOKED_AT)
            if waits or len(queue.items) > 1 or not isinstance(queue.items[0].work, _FIRST_JOBS)
        ]
        known = (queue for queue in found if queue.last_worker == worker)
        return next(known, None) or next(iter(found), None)

    def to_move(self, worker: int, busy: Container[int]) -> Queue | None:
        """The device with the most to do of another worker, if that is busy with something else.

        ``busy``: workers that have enough to do with what they were sent.
        """
        found = (
            queue
            for other, ready in enumerate(self._ready)
            if other != worker and (other in busy or len(ready) > 1)
            for queue in ready.values()
            if queue.movable
        )
        return max(found, key=lambda queue: len(queue.items), default=None)
