"""Task Scheduler: which received message the server works on next (paper Alg. 2 and 3).

Models always go first, in order of arrival; with `InTurn` they alternate with activations. The two
other policies differ in the order of activations.
A call costs O(log K), whatever the number of batches waiting (joining and leaving: on average over
the calls, because changed counts are updated there).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from fedoptima.core.errors import InvariantBroken
from fedoptima.core.messages import ActivationBatch, ModelUpdate
from fedoptima.core.types import NodeId

Task = tuple[NodeId, ActivationBatch | ModelUpdate]


class TaskScheduler(Protocol):
    def join(self, device: NodeId) -> None: ...
    def leave(self, device: NodeId) -> int: ...  # batches dropped
    # ``cost``: what the batch adds to its device's count; less for one with much data.
    def put(self, origin: NodeId, item: ActivationBatch | ModelUpdate, cost: float = 1) -> None: ...
    def get(self) -> Task | None: ...
    def waiting(self, device: NodeId) -> int: ...  # batches
    def check(self) -> None: ...
    @property
    def buffered(self) -> int: ...


class CounterScheduler:
    """Activations of the device that has contributed least go first: ``argmin_k c_k``.

    The argmin runs over devices with a batch waiting (the paper's text would pick empty queues).
    Contributions are counted relative to the devices' shares of the data, if these are unequal.
    """

    def __init__(self) -> None:
        self._models: OrderedDict[NodeId, ModelUpdate] = OrderedDict()
        self._queues: dict[NodeId, deque[ActivationBatch]] = {}
        self._heap: list[tuple[float, int, NodeId]] = []  # (c_k, order, device); may be outdated
        self._entry: dict[NodeId, int] = {}  # the order number of a device's valid heap entry
        self._order = 0
        self._counts: list[tuple[float, NodeId]] = []  # a heap; c_k may be higher by now
        self._counted: dict[NodeId, None] = {}  # devices with an entry there
        self._least: float = 0  # the smallest count of those present, when that was last looked up
        self.buffered = 0
        self._costs: dict[NodeId, float] = {}  # of a device's next batch
        self.consumed: dict[NodeId, float] = {}  # c_k; kept when a device leaves

    def join(self, device: NodeId) -> None:
        # With a count of zero only the newcomer would be served until it had caught up.
        count = max(self.consumed.get(device, 0), self._least_count())
        self.consumed[device] = count
        self._queues[device] = deque()
        if device not in self._counted:
            self._counted[device] = None
            heappush(self._counts, (count, device))

    def leave(self, device: NodeId) -> int:
        self._least_count()  # if all leave, the next one starts from here
        self._models.pop(device, None)
        self._entry.pop(device, None)
        dropped = len(self._queues.pop(device))
        self.buffered -= dropped
        return dropped

    def put(self, origin: NodeId, item: ActivationBatch | ModelUpdate, cost: float = 1) -> None:
        if isinstance(item, ModelUpdate):
            self._models[origin] = item
            return
        self._costs[origin] = cost
        queue = self._queues[origin]
        queue.append(item)
        self.buffered += 1
        if len(queue) == 1:
            self._line_up(origin)

    def get(self) -> Task | None:
        if self._models:
            return self._models.popitem(last=False)
        while self._heap:
            _, order, device = heappop(self._heap)
            if self._entry.get(device) != order:
                continue
            del self._entry[device]
            queue = self._queues[device]
            batch = queue.popleft()
            self.buffered -= 1
            self.consumed[device] += self._costs[device]
            if queue:
                self._line_up(device)
            return device, batch
        return None

    def waiting(self, device: NodeId) -> int:
        return len(self._queues[device])

    def _least_count(self) -> float:
        while self._counts:
            count, device = self._counts[0]
            if device not in self._queues:
                heappop(self._counts)
                del self._counted[device]
            elif count != self.consumed[device]:
                heapreplace(self._counts, (self.consumed[device], device))
            else:
                self._least = count
                break
        return self._least

    def _line_up(self, device: NodeId) -> None:
        self._order += 1
        self._entry[device] = self._order
        heappush(self._heap, (self.consumed[device], self._order, device))

    def check(self) -> None:
        waiting = {device for device, queue in self._queues.items() if queue}
        if self.buffered != sum(map(len, self._queues.values())):
            raise InvariantBroken(f"{self.buffered} batches counted, but a different number queued")
        if waiting != self._entry.keys():
            raise InvariantBroken("a device with batches waiting is not in the scheduler's heap")


class FifoScheduler:
    """Activations in order of arrival: the paper's ablation, and what the baselines use."""

    def __init__(self) -> None:
        self._models: OrderedDict[NodeId, ModelUpdate] = OrderedDict()
        self._queue: OrderedDict[int, tuple[NodeId, ActivationBatch]] = OrderedDict()
        self._numbers: dict[NodeId, deque[int]] = {}  # so that leaving costs only what is dropped
        self._order = 0
        self.consumed: dict[NodeId, int] = {}

    def join(self, device: NodeId) -> None:
        self._numbers[device] = deque()
        self.consumed.setdefault(device, 0)

    def leave(self, device: NodeId) -> int:
        self._models.pop(device, None)
        numbers = self._numbers.pop(device)
        for number in numbers:
            del self._queue[number]
        return len(numbers)

    def put(self, origin: NodeId, item: ActivationBatch | ModelUpdate, cost: float = 1) -> None:
        if isinstance(item, ModelUpdate):
            self._models[origin] = item
            return
        self._order += 1
        self._queue[self._order] = (origin, item)
        self._numbers[origin].append(self._order)

    def get(self) -> Task | None:
        if self._models:
            return self._models.popitem(last=False)
        if not self._queue:
            return None
        _, (device, batch) = self._queue.popitem(last=False)
        self._numbers[device].popleft()
        self.consumed[device] += 1
        return device, batch

    def waiting(self, device: NodeId) -> int:
        return len(self._numbers[device])

    @property
    def buffered(self) -> int:
        return len(self._queue)

    def check(self) -> None:
        if len(self._queue) != sum(map(len, self._numbers.values())):
            raise InvariantBroken("the queue and the devices' places in it disagree")


class InTurn:
    """Models and activations take turns while there are both; of each the order is unchanged.

    For devices that do not wait for their models to be merged: where merges take long and rounds
    are short, there is always another update, and models alone would keep the server busy.
    """

    def __init__(self, build: Callable[[], TaskScheduler]) -> None:
        """``build``: the scheduler of the activations."""
        self._models: OrderedDict[NodeId, ModelUpdate] = OrderedDict()
        self._activations = build()
        self._merged_last = False

    def join(self, device: NodeId) -> None:
        self._activations.join(device)

    def leave(self, device: NodeId) -> int:
        self._models.pop(device, None)
        return self._activations.leave(device)

    def put(self, origin: NodeId, item: ActivationBatch | ModelUpdate, cost: float = 1) -> None:
        if isinstance(item, ModelUpdate):
            self._models[origin] = item
        else:
            self._activations.put(origin, item, cost)

    def get(self) -> Task | None:
        batch_first = self._merged_last and self._activations.buffered > 0
        self._merged_last = bool(self._models) and not batch_first
        return self._models.popitem(last=False) if self._merged_last else self._activations.get()

    def waiting(self, device: NodeId) -> int:
        return self._activations.waiting(device)

    @property
    def buffered(self) -> int:
        return self._activations.buffered

    def check(self) -> None:
        self._activations.check()
