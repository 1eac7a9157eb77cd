"""Traces of small simulated runs with toy engines, and their replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from fedoptima.core.events import Received
from fedoptima.core.server import ServerCore
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import NodeId
from fedoptima.sim.faults import Change
from fedoptima.testing.world import Description, Device, World
from fedoptima.trace.record import Record
from fedoptima.verification.core_replay import Verdict, replay_trace
from fedoptima.verification.difference import Difference
from tests.support.rows import DEFAULTS, ROWS

D0, D1, D2 = NodeId("d0"), NodeId("d1"), NodeId("d2")
DEVICES = (Device(), Device(speed=2.0, latency=0.3), Device(speed=3.0))
CHANGES = (
    Change(1.0, D0, "cut"),
    Change(2.0, D0, "restore"),
    Change(3.0, D1, "leave"),
    Change(5.0, D1, "return"),
    Change(6.0, D2, "hang"),
    Change(9.0, D2, "leave"),
    Change(10.0, D2, "return"),
)
Trace = tuple[Record, ...]


def world(name: str, **options: object) -> World:
    usual: dict[str, object] = {"devices": DEVICES, "stop": StopRule(rounds=6)}
    return World(Description(ROWS[name](DEFAULTS), **{**usual, **options}))  # type: ignore[arg-type]


@cache
def trace_of(name: str, changes: tuple[Change, ...] = CHANGES) -> Trace:
    story = world(name, changes=changes)
    story.run()
    return tuple(story.records)


def fresh_server(name: str) -> Callable[[], ServerCore]:
    settings = world(name).server._settings
    return lambda: ServerCore(ROWS[name](DEFAULTS), settings)


def replay(name: str, records: Sequence[Record]) -> Verdict:
    return replay_trace(records, fresh_server(name))


def first_difference(name: str, records: Sequence[Record]) -> Difference | None:
    return replay(name, records).difference


def changed(records: Sequence[Record], index: int, **change: object) -> list[Record]:
    return [*records[:index], replace(records[index], **change), *records[index + 1 :]]  # type: ignore[arg-type]


def index_of(records: Sequence[Record], wanted: Callable[[Record], bool]) -> int:
    return next(index for index, record in enumerate(records) if wanted(record))


def received(kind: type, by: NodeId) -> Callable[[Record], bool]:
    def wanted(record: Record) -> bool:
        event = record.event
        return record.node == by and isinstance(event, Received) and isinstance(event.message, kind)

    return wanted
