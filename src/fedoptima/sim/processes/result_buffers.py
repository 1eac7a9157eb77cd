"""Memory that the driving process lends to workers with their orders, for results."""

from __future__ import annotations

from fedoptima.core.jobs import ExportModel, LoadModel
from fedoptima.sim.processes.messages import Declared, Work
from fedoptima.sim.processes.queues import Item, Queue
from fedoptima.sim.processes.shared_memory import FreeMemory, Place


class ResultBuffers:
    def __init__(self, free: FreeMemory) -> None:
        self._free = free

    def lend(self, queue: Queue, item: Item) -> Place | None:
        """Memory for the result; for a device's weights from the beginning of a round, so that
        its update is there without a copy."""
        if isinstance(item.work, LoadModel):
            if queue.buffer is None:
                queue.buffer = self._free.buffer_for(_weights(item.work), queue.last_buffer)
            return queue.buffer
        if _hands_over(item.work) and queue.buffer is not None:
            # One that is coded takes less, and cannot be there.
            size = self._free.size_of(_result(item.work, item.declared))
            if size is None or size == queue.buffer.nbytes:
                return queue.buffer
        if item.value is not None:
            item.buffer = self._free.buffer_for(_result(item.work, item.declared))
        return item.buffer

    def loaded(self, queue: Queue, work: LoadModel, place: Place) -> None:
        """A device's weights are there."""
        self._free.learn(_weights(work), place.nbytes)
        if queue.buffer != place:
            self.give_back(queue)
        queue.buffer = queue.last_buffer = place

    def used(self, queue: Queue, item: Item, work: Work | None, place: Place | None) -> None:
        """The result is there; None: it could not be computed."""
        if item.buffer is not None and place != item.buffer:
            self._free.add(*item.buffer)
        if place is None:
            return
        self._free.learn(_result(work, item.declared), place.nbytes)
        if _hands_over(work):
            if place == queue.buffer:
                queue.buffer = None
            self.give_back(queue)

    def give_back(self, queue: Queue) -> None:
        """A device's weights are not there any more."""
        if queue.buffer is not None:
            self._free.add(*queue.buffer)
            queue.buffer = None


def _hands_over(work: Work | None) -> bool:
    """Else the device trains on, with its weights where they are."""
    return isinstance(work, ExportModel) and not work.keep


def _weights(work: LoadModel) -> object:
    return _kind(LoadModel, work.data.nbytes)


def _result(work: Work | None, declared: Declared | None) -> object:
    return _kind(type(work), declared.nbytes if declared else 0)


def _kind(work: type, nbytes: int) -> object:
    """Results that take the same memory."""
    return work, nbytes
