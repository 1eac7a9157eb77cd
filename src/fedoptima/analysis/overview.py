"""A trace in brief: each node's time, work and bytes, what happened how often, the longest waits.

Times are those of `Accounts`. Bytes are counted at the server, as in `analysis/traffic.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from heapq import heappush, heappushpop

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.spans import Kind, Span
from fedoptima.core.effects import Send
from fedoptima.core.events import DriverEvent, Event, JobDone, JobFailed, Received
from fedoptima.core.messages import nbytes
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record

_WAITS = 10


@dataclass(frozen=True, slots=True)
class NodeLine:
    usage: Usage
    jobs: int  # finished, start-up's too
    batches: int  # of a device's activations that the server has trained on; the server's: all
    bytes_sent: int
    bytes_received: int
    reused_batches: int = 0  # of these, trained on again, as often as they were


@dataclass(frozen=True, slots=True)
class Wait:
    node: NodeId
    kind: Kind
    start: float  # seconds since the training began
    seconds: float


@dataclass(frozen=True)
class Overview:
    records: int
    seconds: float  # of training
    epochs: float
    nodes: Mapping[NodeId, NodeLine]  # the server first, then devices by name
    events: Mapping[str, int]  # by kind, the most frequent first
    waits: tuple[Wait, ...]  # the longest first

    def plain(self) -> dict[str, object]:
        return {
            **asdict(self),
            "nodes": {name: _plain_line(line) for name, line in self.nodes.items()},
        }


def _plain_line(line: NodeLine) -> dict[str, object]:
    usage = line.usage
    shares = {
        "utilisation": usage.utilisation,
        "reused_share": usage.reused_share,
        "idle_1_share": usage.idle_1_share,
        "idle_2_share": usage.idle_2_share,
    }
    rest = {name: value for name, value in asdict(line).items() if name != "usage"}
    return {**asdict(usage), **shares, **rest}


class OverviewAccount:
    """Feed it every record, in order, after the accounts, with the spans that it made final."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._records = 0
        self._events: Counter[tuple[type, type | None]] = Counter()
        self._jobs: Counter[NodeId] = Counter()
        self._sent: Counter[NodeId] = Counter()
        self._received: Counter[NodeId] = Counter()
        self._waits: list[tuple[float, float, NodeId, Kind]] = []  # a heap: the shortest first

    def observe(self, record: Record, spans: Iterable[Span]) -> None:
        self._records += 1
        event = record.event
        self._events[type(event), _subject(event)] += 1
        if isinstance(event, JobDone):
            self._jobs[record.node] += 1
        if record.node == SERVER:
            self._count_bytes(record)
        self.add(spans)

    def add(self, spans: Iterable[Span]) -> None:
        for span in spans:
            if span.kind is Kind.IDLE_1 or span.kind is Kind.IDLE_2:
                wait = (span.end - span.start, -span.start, span.node, span.kind)
                if len(self._waits) < _WAITS:
                    heappush(self._waits, wait)
                else:
                    heappushpop(self._waits, wait)

    def _count_bytes(self, record: Record) -> None:
        event = record.event
        if isinstance(event, Received):
            size = nbytes(event.message)
            self._sent[event.sender] += size
            self._received[SERVER] += size
        for effect in record.effects:
            if isinstance(effect, Send):
                size = nbytes(effect.message)
                self._received[effect.to] += size
                self._sent[SERVER] += size

    def overview(self) -> Overview:
        """As of the last record."""
        summary = self._accounts.summary()
        batches = {name: device.batches for name, device in summary.balance.devices.items()}
        batches[SERVER] = sum(batches.values())
        reused = {name: device.reused_batches for name, device in summary.balance.devices.items()}
        reused[SERVER] = sum(reused.values())
        names = sorted(summary.usage, key=lambda name: (name != SERVER, name))
        began = self._accounts.course.began
        return Overview(
            self._records,
            summary.seconds,
            summary.epochs,
            {
                name: NodeLine(
                    summary.usage[name],
                    self._jobs[name],
                    batches.get(name, 0),
                    self._sent[name],
                    self._received[name],
                    reused.get(name, 0),
                )
                for name in names
            },
            {_called(*what): count for what, count in self._events.most_common()},
            tuple(
                Wait(node, kind, -start - began, seconds)
                for seconds, start, node, kind in sorted(self._waits, reverse=True)
            ),
        )


def _subject(event: Event | DriverEvent) -> type | None:
    """What was received or done: it says more than that something was."""
    match event:
        case Received(message=message):
            return type(message)
        case JobDone(job=job) | JobFailed(job=job):
            return type(job)
    return None


def _called(event: type, subject: type | None) -> str:
    return event.__name__ if subject is None else f"{event.__name__} {subject.__name__}"
