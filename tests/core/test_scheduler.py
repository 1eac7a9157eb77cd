from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.errors import InvariantBroken
from fedoptima.core.messages import ActivationBatch, ModelUpdate
from fedoptima.core.scheduler import CounterScheduler, FifoScheduler, TaskScheduler
from fedoptima.core.types import NodeId
from tests.support.bench import payload, update
from tests.support.effort import lines_executed

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
BOTH = pytest.mark.parametrize("kind", [CounterScheduler, FifoScheduler])


def batch(seq: int = 0) -> ActivationBatch:
    return ActivationBatch(seq, payload(f"x/0/{seq}"))


def joined(kind: type[TaskScheduler], *devices: NodeId) -> TaskScheduler:
    scheduler = kind()
    for device in devices:
        scheduler.join(device)
    return scheduler


def served(scheduler: TaskScheduler) -> NodeId | None:
    task = scheduler.get()
    scheduler.check()
    return task[0] if task else None


@BOTH
def test_nothing_waiting_gives_nothing(kind: type[TaskScheduler]) -> None:
    assert joined(kind, A).get() is None


@BOTH
def test_models_go_before_activations_in_order_of_arrival(kind: type[TaskScheduler]) -> None:
    scheduler = joined(kind, A, B, C)
    scheduler.put(A, batch())
    scheduler.put(C, update("c/0/1"))
    scheduler.put(B, update("b/0/1"))
    assert [served(scheduler) for _ in range(4)] == [C, B, A, None]


@BOTH
def test_a_devices_batches_come_in_the_order_it_sent_them(kind: type[TaskScheduler]) -> None:
    scheduler = joined(kind, A)
    for seq in range(5):
        scheduler.put(A, batch(seq))
    assert [scheduler.get() for _ in range(5)] == [(A, batch(seq)) for seq in range(5)]


@BOTH
def test_leaving_drops_batches_and_the_model_and_says_how_many_batches(
    kind: type[TaskScheduler],
) -> None:
    scheduler = joined(kind, A, B)
    for device in (A, B, A):
        scheduler.put(device, batch())
    scheduler.put(A, update("a/0/1"))
    assert scheduler.leave(A) == 2
    assert scheduler.buffered == 1
    assert [served(scheduler), served(scheduler)] == [B, None]


@BOTH
def test_a_device_that_comes_back_does_not_find_its_old_batches(kind: type[TaskScheduler]) -> None:
    scheduler = joined(kind, A)
    scheduler.put(A, batch(1))
    scheduler.leave(A)
    scheduler.join(A)
    scheduler.put(A, batch(2))
    assert scheduler.get() == (A, batch(2))
    assert scheduler.get() is None


def test_the_counter_serves_the_device_used_least_among_those_that_wait() -> None:
    scheduler = joined(CounterScheduler, A, B, C)
    for device in (A, A, A, B):
        scheduler.put(device, batch())
    # C was used least of all, but has nothing waiting: docs/decisions/0003.
    assert [served(scheduler) for _ in range(4)] == [A, B, A, A]


def test_fifo_serves_in_order_of_arrival_whoever_was_used_least() -> None:
    scheduler = joined(FifoScheduler, A, B)
    for device in (A, A, A, B):
        scheduler.put(device, batch())
    assert [served(scheduler) for _ in range(4)] == [A, A, A, B]


def serve(scheduler: TaskScheduler, device: NodeId, times: int) -> None:
    for _ in range(times):
        scheduler.put(device, batch())
        scheduler.get()


def test_a_newcomer_starts_at_the_least_count_of_those_present() -> None:
    scheduler = CounterScheduler()
    for device in (A, B):
        scheduler.join(device)
    serve(scheduler, B, 2)
    serve(scheduler, A, 5)  # the device served last is the one used most
    scheduler.join(C)
    assert scheduler.consumed == {A: 5, B: 2, C: 2}


def test_the_count_of_a_device_that_left_is_not_a_newcomers() -> None:
    scheduler = CounterScheduler()
    for device in (A, B):
        scheduler.join(device)
    serve(scheduler, A, 5)
    scheduler.leave(B)
    scheduler.join(C)
    assert scheduler.consumed == {A: 5, B: 0, C: 5}
    serve(scheduler, A, 2)
    scheduler.join(B)  # it missed those, and does not get them back
    assert scheduler.consumed == {A: 7, B: 5, C: 5}


def test_a_newcomer_to_a_fleet_that_has_left_starts_where_that_was() -> None:
    scheduler = CounterScheduler()
    scheduler.join(A)
    serve(scheduler, A, 5)
    scheduler.leave(A)
    scheduler.join(B)  # with a count of zero it would own the server when A is back
    scheduler.join(A)
    assert scheduler.consumed == {A: 5, B: 5}


@given(st.lists(st.tuples(st.sampled_from("sssjjl"), st.integers(0, 4)), min_size=40))
def test_the_least_count_is_that_of_all_who_are_present(actions: list[tuple[str, int]]) -> None:
    scheduler = CounterScheduler()
    present: dict[NodeId, None] = {}
    for action, number in actions:
        device = NodeId(f"d{number}")
        if action == "j" and device not in present:
            known = scheduler.consumed.get(device, 0)
            least = min((scheduler.consumed[other] for other in present), default=None)
            scheduler.join(device)
            present[device] = None
            if least is not None:
                assert scheduler.consumed[device] == max(known, least)
        elif action == "l" and device in present:
            scheduler.leave(device)
            del present[device]
        elif action == "s" and device in present:
            serve(scheduler, device, 1)


def test_a_device_that_rejoins_keeps_its_own_count_if_that_is_larger() -> None:
    scheduler = CounterScheduler()
    for device in (A, B):
        scheduler.join(device)
    serve(scheduler, A, 3)
    scheduler.leave(A)
    serve(scheduler, B, 1)
    scheduler.join(A)
    assert scheduler.consumed == {A: 3, B: 1}


def test_a_queue_that_was_tampered_with_is_noticed() -> None:
    scheduler = CounterScheduler()
    scheduler.join(A)
    scheduler.put(A, batch())
    scheduler.buffered = 2
    with pytest.raises(InvariantBroken, match="2 batches counted"):
        scheduler.check()


@given(st.lists(st.tuples(st.sampled_from("gggggjl"), st.integers(0, 6)), max_size=120))
def test_queues_that_are_never_empty_are_served_within_one_of_each_other(
    actions: list[tuple[str, int]],
) -> None:
    scheduler = CounterScheduler()
    present: dict[NodeId, None] = {}
    for action, number in actions:
        device = NodeId(f"d{number}")
        if action == "j" and device not in present:
            scheduler.join(device)
            scheduler.put(device, batch())
            present[device] = None
        elif action == "l" and device in present:
            scheduler.leave(device)
            del present[device]
        elif action == "g" and present:
            task = scheduler.get()
            assert task is not None
            scheduler.put(task[0], batch())
        scheduler.check()
        counts = [scheduler.consumed[device] for device in present]
        assert not counts or max(counts) - min(counts) <= 1


@BOTH
@given(data=st.data())
def test_every_batch_is_served_once_or_dropped(
    kind: type[TaskScheduler], data: st.DataObject
) -> None:
    scheduler = kind()
    waiting: Counter[NodeId] = Counter()
    present: list[NodeId] = []
    for step in range(data.draw(st.integers(0, 60))):
        device = NodeId(f"d{data.draw(st.integers(0, 3))}")
        action = data.draw(st.sampled_from("jpppmgl"))
        if action == "j" and device not in present:
            scheduler.join(device)
            present.append(device)
        elif action == "p" and device in present:
            scheduler.put(device, batch(step))
            waiting[device] += 1
        elif action == "m" and device in present:
            scheduler.put(device, update(f"{device}/0/{step}"))
        elif action == "l" and device in present:
            present.remove(device)
            assert scheduler.leave(device) == waiting.pop(device, 0)
        elif action == "g":
            task = scheduler.get()
            if task is None:
                assert not waiting.total()
            elif not isinstance(task[1], ModelUpdate):
                waiting[task[0]] -= 1
        scheduler.check()
        assert scheduler.buffered == waiting.total()


@BOTH
def test_the_effort_per_batch_does_not_grow_with_the_fleet(kind: type[TaskScheduler]) -> None:
    def effort(fleet: int) -> int:
        devices = [NodeId(f"d{i}") for i in range(fleet)]
        scheduler = joined(kind, *devices)
        for device in devices:
            scheduler.put(device, batch())

        def serve_and_refill() -> None:
            task = scheduler.get()
            assert task is not None
            scheduler.put(*task)
            scheduler.leave(devices[-1])
            scheduler.join(devices[-1])
            scheduler.put(devices[-1], batch())

        return lines_executed(serve_and_refill)

    assert effort(1000) == effort(4)
