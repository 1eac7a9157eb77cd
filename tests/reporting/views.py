"""Views of runs for tests: real ones from tiny simulations, and ones with figures as wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from fedoptima.analysis.curve import Point
from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.run_view import RunView, view_of
from fedoptima.analysis.spans import Kind
from fedoptima.analysis.timeline import Lane
from fedoptima.core.effects import Halt
from fedoptima.core.messages import Join
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record
from tests.experiments.runs import CHURN, FLEET, set_up
from tests.support.descriptions import described

SLOW, FAST = NodeId("slow"), NodeId("fast")


@cache
def records_of(method: str, *, churn: bool = False) -> tuple[Record, ...]:
    records: list[Record] = []
    fleet = {**FLEET, "churn": CHURN} if churn else FLEET
    set_up(records, method={"name": method}, fleet=fleet).simulation.run()
    return tuple(records)


@cache
def view(method: str = "fedoptima", *, churn: bool = False, label: str = "") -> RunView:
    cap = 32 if method == "fedoptima" else None
    return view_of(label or method, described(method, cap=cap), records_of(method, churn=churn))


def with_usage(**usage: Usage) -> RunView:
    """A run of two devices whose nodes spent their time like this; nothing else happened."""
    base = view()
    nodes = {NodeId(node): use for node, use in usage.items()}
    memory, balance = base.summary.memory, base.summary.balance
    summary = replace(
        base.summary,
        usage={SERVER: Usage(100.0, 0.0, 0.0), **nodes},
        memory=replace(memory, queue=replace(memory.queue, mean=5.0)),
        balance=replace(balance, devices={}, batches_jain=None),
    )
    joins = {SLOW: Join(0, 8, 2e8, 1e6), FAST: Join(0, 8, 1e9, 1e6)}
    timeline = replace(base.timeline, lanes={}, exact=None)
    return replace(base, summary=summary, joins=joins, timeline=timeline)


def with_queue(view: RunView, mean: float, cap: int | None) -> RunView:
    memory = view.summary.memory
    changed = replace(memory, queue=replace(memory.queue, mean=mean))
    summary = replace(view.summary, memory=changed)
    return replace(view, summary=summary, description=replace(view.description, activation_cap=cap))


def with_lane(view: RunView, node: NodeId, shares: Mapping[Kind, tuple[float, ...]]) -> RunView:
    lanes = {**view.timeline.lanes, node: Lane(shares)}
    return replace(view, timeline=replace(view.timeline, bin_seconds=10.0, lanes=lanes))


def with_curve(view: RunView, label: str, *points: tuple[float, float]) -> RunView:
    """Each point: seconds, accuracy."""
    curve = tuple(Point(at, at, 0, 0, 0, accuracy, None) for at, accuracy in points)
    return replace(view, label=label, summary=replace(view.summary, curve=curve))


def ended(view: RunView, halt: Halt | None) -> RunView:
    return replace(view, halt=halt)
