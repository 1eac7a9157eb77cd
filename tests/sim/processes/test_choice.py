"""Which device a worker goes on with."""

from __future__ import annotations

from fedoptima.core.jobs import FullStep, LoadModel, ServerStep
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.sim.processes.choice import Devices
from fedoptima.sim.processes.queues import Item, Queue
from fedoptima.sim.processes.shared_memory import SharedTensors


class Fleet:
    """Devices a, b, ... with so many steps to do."""

    def __init__(self, workers: int, **steps: int) -> None:
        self.queues = {node: Queue(node) for node in map(NodeId, (SERVER, *steps))}
        self.devices = Devices(workers, self.queues)
        for name, count in steps.items():
            queue = self[name]
            queue.items.extend(Item(n, queue.node, FullStep(n)) for n in range(count))
            self.devices.look_at(queue)

    def __getitem__(self, name: str) -> Queue:
        return self.queues[NodeId(name)]

    def give(self, worker: int, *names: str) -> None:
        for name in names:
            self[name].worker, self[name].loaded = worker, True
            self.devices.look_at(self[name])

    def next_for(self, worker: int, *, begins: bool = True) -> Queue | None:
        return self.devices.next_for(worker, begins=begins, waits=True)[0]


def test_a_worker_finishes_rounds_before_it_begins_others() -> None:
    fleet = Fleet(2, a=1, b=1)
    fleet.give(0, "b")
    assert fleet.next_for(0) is fleet["b"]
    assert fleet.next_for(1) is fleet["a"]
    assert fleet.next_for(1, begins=False) is None


def test_what_the_server_waits_for_comes_first_also_from_a_device_that_has_not_begun() -> None:
    fleet = Fleet(2, a=3, b=3)
    fleet.give(0, "a")
    wanted = fleet["b"].items[1]
    activations = SharedTensors()
    activations.maker = wanted
    step = ServerStep(NodeId("b"), 1, 1, Payload(PayloadId("b:1"), 8, activations), 0.0)
    item = Item(9, SERVER, step)
    item.needs, item.missing = [activations], 1
    fleet[SERVER].items.append(item)
    assert fleet.devices.next_for(0, begins=False, waits=True) == (fleet["b"], wanted)


def test_a_worker_without_work_gets_the_device_with_the_most_to_do_of_a_busy_one() -> None:
    fleet = Fleet(2, a=2, b=5, c=3)
    fleet.give(0, "a", "b", "c")
    assert fleet.devices.to_move(1, busy={0}) is fleet["b"]
    assert fleet.devices.to_move(0, busy={0}) is None


def test_a_worker_keeps_the_only_thing_that_it_has_to_do() -> None:
    fleet = Fleet(2, a=5)
    fleet.give(0, "a")
    assert fleet.devices.to_move(1, busy=()) is None
    assert fleet.devices.to_move(1, busy={0}) is fleet["a"]


def test_a_device_is_moved_between_two_steps_only_and_once_its_worker_has_it() -> None:
    fleet = Fleet(2, a=5)
    fleet.give(0, "a")
    queue = fleet["a"]
    queue.under_way = 1
    assert fleet.devices.to_move(1, busy={0}) is None
    queue.under_way, queue.passes = 0, 1
    assert fleet.devices.to_move(1, busy={0}) is None
    queue.passes, queue.loaded = 0, False
    assert fleet.devices.to_move(1, busy={0}) is None
    queue.loaded = True
    assert fleet.devices.to_move(1, busy={0}) is queue


def test_a_round_is_begun_once_there_is_more_to_do_than_to_load_the_model() -> None:
    fleet = Fleet(1, a=0)
    queue = fleet["a"]
    queue.items.append(Item(1, queue.node, LoadModel(Payload(PayloadId("m"), 8), 0.0)))
    fleet.devices.look_at(queue)
    assert fleet.devices.next_for(0, begins=True, waits=False)[0] is None
    assert fleet.devices.next_for(0, begins=True, waits=True)[0] is queue
    queue.items.append(Item(2, queue.node, FullStep(0)))
    assert fleet.devices.next_for(0, begins=True, waits=False)[0] is queue
