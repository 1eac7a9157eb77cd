from __future__ import annotations

import weakref

import torch

from fedoptima.core.events import JobDone, TimerFired
from fedoptima.core.jobs import FullStep
from fedoptima.core.types import SERVER, Payload, PayloadId
from fedoptima.experiments.record_queue import RecordQueue
from fedoptima.trace.record import Record


def record(number: int) -> Record:
    return Record(float(number), SERVER, TimerFired(str(number)), [])


def test_every_observer_sees_every_record_once_and_in_order() -> None:
    first, second = list[Record](), list[Record]()
    queue = RecordQueue(first.append)
    queue.observers.append(second.append)
    queue.add(record(1))
    queue.add(record(2))
    assert first == []
    queue.work_off()
    queue.add(record(3))
    queue.work_off()
    queue.work_off()
    assert first == second == [record(1), record(2), record(3)]


def test_no_more_wait_than_there_is_room_for() -> None:
    seen = list[Record]()
    queue = RecordQueue(seen.append)
    for number in range(5000):
        queue.add(record(number))
    assert len(seen) > 3000
    queue.work_off()
    assert seen == [record(number) for number in range(5000)]


def test_no_tensor_is_kept_from_being_freed() -> None:
    tensor = torch.zeros(1)
    gone = weakref.ref(tensor)
    queue = RecordQueue()
    data = Payload(PayloadId("server/0/1"), 4, {"weight": tensor})
    queue.add(Record(1.0, SERVER, JobDone(1, FullStep(0), data), []))
    del tensor, data
    assert gone() is None
