"""Where each node's time went, span by span: what it computed, what it sent, what it waited for.

Spans of work and of waiting are the very stretches of time that `report/usage.py` adds up: its
rules are used, not repeated. So they do not overlap, and their sums are a node's busy and idle
time, at any moment of a run. What took no time has no such span. Transfers overlap them; one has a
span at either end, and the two come one after the other.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from fedoptima.analysis.transfers import Transfer, TransferAccount
from fedoptima.analysis.usage import UsageAccount, _Node
from fedoptima.core.events import Received
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    Forward,
    FullStep,
    Job,
    Merge,
    ServerStep,
)
from fedoptima.core.messages import ModelUpdate, nbytes
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record

_ROUNDING = 1e-9  # seconds: sums of the same waits, added up in another order


class Kind(StrEnum):
    TRAIN = "train"
    MERGE = "merge"
    OTHER = "other"  # loads or exports a model, opens or closes a copy
    SEND = "send"
    RECEIVE = "receive"
    IDLE_1 = "idle_1"  # waiting for the other side
    IDLE_2 = "idle_2"  # waiting for slower devices
    AWAY = "away"  # since it left, until it has a model again


_KINDS: dict[type, Kind] = {
    Forward: Kind.TRAIN,
    AuxiliaryStep: Kind.TRAIN,
    Backward: Kind.TRAIN,
    FullStep: Kind.TRAIN,
    ServerStep: Kind.TRAIN,
    Merge: Kind.MERGE,
}


class Span(NamedTuple):  # a long run has millions: a dataclass takes three times as long to make
    node: NodeId
    kind: Kind
    start: float  # seconds on the trace's clock
    end: float
    what: str = ""  # the job's or message's name
    peer: str = ""  # a transfer's other side; whose batch the server trains on
    nbytes: int = 0  # of a transfer


class SpanAccount:
    """Feed it every record, in order. It keeps only what is open."""

    def __init__(self) -> None:
        self._clocks = _Clocks()
        self._transfers = TransferAccount()

    @property
    def now(self) -> float:
        """The last record's time; once the server has halted, nothing counts any more."""
        return self._clocks.now

    def observe(self, record: Record) -> list[Span]:
        """The spans that are final now. A wait is, once the node goes on."""
        clocks = self._clocks
        if clocks.over:
            return []
        clocks.observe(record)
        spans, clocks.final = clocks.final, []
        for transfer in self._transfers.observe(record):
            spans += _both_ends(transfer)
        return spans

    def finish(self) -> list[Span]:
        """The open ones, as of the last record. Asking changes nothing."""
        spans = self._clocks.open()
        for transfer in self._transfers.in_flight(self.now):
            if transfer.received > transfer.sent:
                spans += _both_ends(transfer)
        return spans


def _both_ends(transfer: Transfer) -> tuple[Span, Span]:
    sender, receiver, message, sent, received = transfer
    what, size = type(message).__name__, nbytes(message)
    return (
        Span(sender, Kind.SEND, sent, received, what, receiver, size),
        Span(receiver, Kind.RECEIVE, sent, received, what, sender, size),
    )


class _Clock(_Node):
    """A node's clock that says of each stretch of time what it was."""

    def __init__(self, name: NodeId, clocks: _Clocks) -> None:
        super().__init__()
        self.name = name
        self.left: float | None = None  # it was in the run and is not now
        self._clocks = clocks
        self._shown_2 = 0.0  # how much of `waiting_2` has been made a span
        self._kind, self._what, self._peer = Kind.OTHER, "", ""

    def begin(self, job: Job) -> None:
        self._kind = _KINDS.get(type(job), Kind.OTHER)
        self._what = type(job).__name__
        self._peer = job.origin if isinstance(job, ServerStep) else ""

    def advance(self, now: float) -> None:
        if self.since is not None and now > self.since:
            for span in self.open(now):
                if span.kind is Kind.IDLE_2:
                    self._shown_2 += span.end - span.start
                self._clocks.final.append(span)
        super().advance(now)

    def open(self, now: float) -> list[Span]:
        """What the time since the clock was last read was spent on."""
        start = self.left if self.since is None else self.since
        if start is None or now <= start:
            return []
        if self.since is not None and self.working:
            return [Span(self.name, self._kind, start, now, self._what, self._peer)]
        if self.since is None or not self.connected:
            return [Span(self.name, Kind.AWAY, start, now)]
        return self._wait(start, now)

    def _wait(self, start: float, end: float) -> list[Span]:
        """Since its update arrived; for slower devices first, as long as was booked at the merge.

        A real device's clock may say that it was still at work then. It waits a little later.
        """
        owed = self.waiting_2 - self._shown_2
        if owed <= _ROUNDING:
            return [Span(self.name, Kind.IDLE_1, start, end)]
        turn = start + owed
        if turn >= end - _ROUNDING:
            return [Span(self.name, Kind.IDLE_2, start, end)]
        return [
            Span(self.name, Kind.IDLE_2, start, turn),
            Span(self.name, Kind.IDLE_1, turn, end),
        ]


class _Clocks(UsageAccount):
    """Busy and idle time, with every stretch of it told."""

    def __init__(self) -> None:
        super().__init__()
        self.final: list[Span] = []
        self._clocks: dict[NodeId, _Clock] = {}
        self._clock(SERVER)

    @property
    def over(self) -> bool:
        return self._over

    @property
    def now(self) -> float:
        return self._now

    def open(self) -> list[Span]:
        return [span for clock in self._clocks.values() for span in clock.open(self._now)]

    def observe(self, record: Record) -> None:
        clock = self._clocks.get(record.node) or self._clock(record.node)
        event = record.event
        if isinstance(event, Received) and isinstance(event.message, ModelUpdate):
            self._handed_in(event.sender, record.at)
        super().observe(record)
        if clock.left is not None and clock.since is not None:
            if clock.since > clock.left:
                self.final.append(Span(clock.name, Kind.AWAY, clock.left, clock.since))
            clock.left = None

    def _clock(self, name: NodeId) -> _Clock:
        clock = self._clocks[name] = self._nodes[name] = _Clock(name, self)
        return clock

    def _handed_in(self, device: NodeId, now: float) -> None:
        """It has waited for the transfer; from now on it may wait for other devices."""
        clock = self._clocks.get(device)
        if clock is not None and not clock.working:
            clock.advance(now)

    def _start(self, node: _Node, job: Job, now: float) -> None:
        super()._start(node, job, now)
        if isinstance(node, _Clock):
            node.begin(job)

    def _lost(self, device: NodeId, now: float) -> None:
        clock = self._clocks.get(device)
        here = clock is not None and clock.since is not None
        super()._lost(device, now)
        if clock is not None and here:
            clock.left = now
