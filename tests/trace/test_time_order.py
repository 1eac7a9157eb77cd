from __future__ import annotations

from fedoptima.core.events import TimerFired
from fedoptima.core.types import NodeId
from fedoptima.trace.record import Record
from fedoptima.trace.time_order import TimeOrder


def records(node: str, *times: float) -> list[Record]:
    return [Record(at, NodeId(node), TimerFired("credit"), []) for at in times]


def released(order: TimeOrder, until: float, **options: bool) -> list[tuple[str, float]]:
    return [(record.node, record.at) for record in order.release(until, **options)]


def test_sources_are_merged_by_time_and_then_by_name() -> None:
    order = TimeOrder()
    order.add("b", records("b", 1.0, 2.0, 4.0))
    order.add("", records("server", 2.0, 3.0))
    assert released(order, 3.0) == [("b", 1.0), ("server", 2.0), ("b", 2.0), ("server", 3.0)]
    assert order.waiting("b") == 1
    assert order.late == 0


def test_what_misses_its_place_is_released_as_new_and_counted() -> None:
    order = TimeOrder()
    order.add("", records("server", 5.0))
    assert released(order, 10.0) == [("server", 5.0)]
    order.add("a", records("a", 3.0, 6.0))
    assert released(order, 10.0) == [("a", 5.0), ("a", 6.0)]
    assert order.late == 1


def test_once_all_is_settled_times_stay_as_they_are() -> None:
    order = TimeOrder()
    order.add("a", records("a", 3.0, 2.0, 4.0))
    assert released(order, 10.0, settled=True) == [("a", 3.0), ("a", 2.0), ("a", 4.0)]
    assert order.late == 0


def test_a_source_with_more_to_come_holds_the_others_back() -> None:
    order = TimeOrder()
    order.add("a", records("a", 1.0))
    order.add("b", records("b", 2.0))
    assert [record.node for record in order.release(10.0, unread={"a"})] == ["a"]
    order.add("a", records("a", 1.5))
    assert released(order, 10.0) == [("a", 1.5), ("b", 2.0)]
