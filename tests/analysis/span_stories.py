"""Spans of traces written by hand, and what they say of a node."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.analysis.spans import Kind, Span
from fedoptima.core.effects import Send
from fedoptima.core.events import Received, TimerFired
from fedoptima.core.messages import Message
from fedoptima.core.types import NodeId
from fedoptima.trace.record import Record
from tests.analysis.stories import A, B, SpanReader, connects, loads, plans, prepares, told

TRANSFERS = (Kind.SEND, Kind.RECEIVE)


def spans_of(records: Sequence[Record]) -> list[Span]:
    account = SpanReader()
    found = [span for record in by_time(records) for span in account.observe(record)]
    return found + account.finish()


def by_time(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.at)


def lane(spans: Sequence[Span], node: NodeId) -> list[tuple[Kind, float, float]]:
    """What a node did, without its transfers."""
    return [
        (span.kind, span.start, span.end)
        for span in sorted(spans, key=lambda span: span.start)
        if span.node == node and span.kind not in TRANSFERS
    ]


def start() -> list[Record]:
    """Everybody is there at 0, the plan is ready at 5, a model is loaded by 7."""
    records = [*connects(0.0, A, B), *plans(0.0, 5.0)]
    for device in (A, B):
        records += [*prepares(5.5, 6.0, device), *loads(6.0, 7.0, device)]
    return records


def sends(at: float, node: NodeId, to: NodeId, message: Message, session: int = 1) -> Record:
    return told(at, node, TimerFired("any"), Send(to, session, message))


def gets(at: float, node: NodeId, sender: NodeId, message: Message, session: int = 1) -> Record:
    return told(at, node, Received(sender, session, message))
