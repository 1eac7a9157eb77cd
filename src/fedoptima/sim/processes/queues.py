"""Jobs that have declared their results and wait to be computed."""

from __future__ import annotations

from collections import deque

from fedoptima.core.types import NodeId
from fedoptima.sim.processes.messages import Aside, Declared, Done, Work
from fedoptima.sim.processes.shared_memory import Place, SharedTensors


class Item:
    """A job, or other work of a node that has its place among the jobs."""

    __slots__ = (
        *("cost", "declared", "missing", "needs", "node", "number", "queued"),
        *("reply", "buffer", "seconds", "sent", "value", "void", "work"),
    )

    def __init__(
        self,
        number: int,
        node: NodeId,
        work: Work,
        declared: Declared | None = None,
        value: SharedTensors | None = None,
    ) -> None:
        self.number = number
        self.node = node
        self.work: Work | None = work  # None once it is done
        self.declared = declared
        self.value = value  # of the result; None once it is done
        self.needs: list[SharedTensors] = []  # payloads that were not there when it was added
        self.missing = 0  # how many of them still are not
        self.void = False  # one of them could not be computed
        self.queued = False
        self.sent = False  # to a worker
        self.seconds = 0.0  # that it is expected to take
        self.cost = 0  # bytes that it uses and makes
        self.buffer: Place | None = None  # memory that was lent for the result
        self.reply: Done | None = None

    @property
    def done(self) -> bool:
        return self.reply is not None

    @property
    def result(self) -> Done:
        assert self.reply is not None
        return self.reply


class Queue:
    """The jobs of a node that no worker has been sent yet."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.items: deque[Item] = deque()
        self.worker: int | None = None  # that does its jobs
        self.last_worker: int | None = None  # that knows the pages of its memory
        self.loaded = False  # the worker has the node's state
        self.closing = False  # it parts with this worker: the last job of a round is under way
        self.under_way = 0  # jobs that the worker has been sent
        self.passes = 0  # forward passes whose backward pass is to come; they cannot be moved
        self.aside: Aside | None = None  # a device's state between two rounds
        self.buffer: Place | None = None  # memory that was lent for its weights in this round
        self.last_buffer: Place | None = None
        self.received: object = None  # the model that this round began with: still in use
        self.error: Exception | None = None  # a device with one can do nothing any more

    @property
    def ready(self) -> bool:
        return bool(self.items) and not self.items[0].missing and not self.closing

    @property
    def movable(self) -> bool:
        """Could another worker go on with it?"""
        idle = self.ready and self.loaded and not self.under_way
        return idle and not self.passes and self.error is None
