"""Memory that is lent to workers: each part of it has one owner at any time."""

from __future__ import annotations

import gc
import sys

import pytest
import torch

from fedoptima.core.jobs import ExportModel, LoadModel
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.sim.processes.messages import Declared, Work
from fedoptima.sim.processes.queues import Item, Queue
from fedoptima.sim.processes.result_buffers import ResultBuffers
from fedoptima.sim.processes.shared_memory import FreeMemory, Place, SharedMemory, SharedTensors

SIZE = 100  # of a model
HERE, THERE = Place(0, 128), Place(128, 128)
LOAD = LoadModel(Payload(PayloadId("m"), SIZE), 0.0)


class Desk:
    def __init__(self, *free: Place) -> None:
        self.free = FreeMemory()
        for kind in (LoadModel, ExportModel):
            self.free.learn((kind, SIZE), HERE.nbytes)
        for place in free:
            self.free.add(*place)
        self.buffers = ResultBuffers(self.free)
        self.queue = Queue(NodeId("d"))

    def item(self, work: Work) -> Item:
        exports = isinstance(work, ExportModel)
        declared = Declared(PayloadId("x"), SIZE if exports else 0, 0, "")
        value = SharedTensors() if exports else None
        return Item(1, self.queue.node, work, declared, value)

    def left(self) -> set[Place]:
        found = set()
        while (place := self.free.buffer_for((ExportModel, SIZE))) is not None:
            assert place not in found
            found.add(place)
        return found


def test_an_update_stays_where_the_weights_were_and_its_place_is_preferred_the_next_time() -> None:
    desk = Desk(HERE, THERE)
    place = desk.buffers.lend(desk.queue, desk.item(LOAD))
    assert place is not None
    export = desk.item(ExportModel())
    assert desk.buffers.lend(desk.queue, export) == place  # sent before the reply to the other
    desk.buffers.loaded(desk.queue, LOAD, place)
    desk.buffers.used(desk.queue, export, ExportModel(), place)
    assert desk.queue.buffer is None
    desk.free.add(*place)  # it was merged
    assert desk.buffers.lend(desk.queue, desk.item(LOAD)) == place


def test_the_place_that_a_worker_had_to_find_itself_is_the_updates_too() -> None:
    desk = Desk()
    assert desk.buffers.lend(desk.queue, desk.item(LOAD)) is None
    export = desk.item(ExportModel())
    assert desk.buffers.lend(desk.queue, export) is None
    desk.buffers.loaded(desk.queue, LOAD, THERE)
    desk.buffers.used(desk.queue, export, ExportModel(), THERE)
    assert desk.queue.buffer is None
    assert not desk.left()


@pytest.mark.parametrize("used", [HERE, THERE])
def test_what_was_lent_and_not_used_is_free_again(used: Place) -> None:
    desk = Desk(HERE)
    desk.buffers.lend(desk.queue, desk.item(LOAD))
    desk.buffers.loaded(desk.queue, LOAD, used)
    export = desk.item(ExportModel())
    assert desk.buffers.lend(desk.queue, export) == used
    desk.buffers.used(desk.queue, export, ExportModel(), used)
    assert desk.left() == {HERE} - {used}


def test_memory_of_a_device_that_fails_is_free_once_it_is_reset() -> None:
    desk = Desk(HERE)
    desk.buffers.lend(desk.queue, desk.item(LOAD))
    desk.buffers.loaded(desk.queue, LOAD, HERE)
    export = desk.item(ExportModel())
    desk.buffers.lend(desk.queue, export)
    desk.buffers.used(desk.queue, export, ExportModel(), None)
    assert desk.queue.buffer == HERE
    desk.buffers.give_back(desk.queue)
    desk.buffers.give_back(desk.queue)
    assert desk.left() == {HERE}


def test_a_device_that_was_moved_is_lent_memory_for_its_update() -> None:
    desk = Desk(HERE)
    desk.buffers.lend(desk.queue, desk.item(LOAD))
    desk.buffers.loaded(desk.queue, LOAD, HERE)
    desk.buffers.give_back(desk.queue)  # it was released
    export = desk.item(ExportModel())
    assert desk.buffers.lend(desk.queue, export) == HERE
    desk.buffers.used(desk.queue, export, ExportModel(), HERE)
    assert not desk.left()


@pytest.mark.parametrize("coded", [100, 25], ids=["as it is", "coded"])
def test_every_round_of_a_device_takes_the_same_memory(coded: int) -> None:
    free = FreeMemory()
    buffers, queue, region = ResultBuffers(free), Queue(NodeId("d")), SharedMemory(1).region(0)
    places = list[set[Place]]()
    for _ in range(4):
        load = Item(1, queue.node, LOAD, Declared(PayloadId("x"), 0, 0, ""))
        weights = {"w": torch.zeros(SIZE, dtype=torch.uint8)}
        own = region.store(weights, buffers.lend(queue, load))
        buffers.loaded(queue, LOAD, own)
        work, value = ExportModel(), SharedTensors()
        export = Item(2, queue.node, work, Declared(PayloadId("y"), coded, 0, ""), value)
        update = {"w": torch.zeros(coded, dtype=torch.uint8)}
        place = region.store(update, own, buffers.lend(queue, export))
        buffers.used(queue, export, work, place)
        free.add(*place)  # it was merged
        places.append({own, place})
    assert all(each == places[0] for each in places)


# ---- values that nobody has any more -------------------------------------------------------------


def test_the_memory_of_a_value_that_nobody_has_is_lent_again() -> None:
    free = FreeMemory()
    free.learn("updates", HERE.nbytes)
    value, computed_later = free.new_value(), free.new_value()
    value.place = HERE
    assert free.values() == [value, computed_later]
    assert free.buffer_for("updates") is None
    del value, computed_later
    assert free.values() == []
    assert free.buffer_for("updates") == HERE
    assert free.buffer_for("updates") is None


def test_so_is_that_of_a_value_which_refers_to_itself() -> None:
    free = FreeMemory()
    free.learn("updates", HERE.nbytes)
    value = free.new_value()
    value.place, value.maker = HERE, [value]
    del value
    gc.collect()
    assert free.buffer_for("updates") == HERE


def test_no_python_code_runs_when_a_value_goes() -> None:
    # Ctrl-C raises its exception in whatever runs, and Python drops one that is raised in a
    # finaliser or in a callback of a weak reference: the run would not end.
    free, ran = FreeMemory(), list[object]()
    value = free.new_value()
    value.place = HERE
    sys.setprofile(lambda frame, event, _: ran.append((event, frame.f_code.co_name)))
    try:
        del value
    finally:
        sys.setprofile(None)
    assert [what for what in ran if what[0] == "call"] == []
