"""Where each node's time went, span by span: what it computed, what it sent, what it waited for.

Spans of work and of waiting are the very stretches of time that the usage account adds up. So they
do not overlap, and their sums are a node's busy and idle time, at any moment of a run. What took no
time has no such span. Transfers overlap them; one has a span at either end, and the two come one
after the other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fedoptima.analysis.idle_time import NodeClock, UsageAccount
from fedoptima.analysis.transfers import Transfer, TransferAccount
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    BasedMerge,
    CutMerge,
    CutStep,
    FoldedMerge,
    Forward,
    FullStep,
    Merge,
    ReusedStep,
    RobustMerge,
    ServerStep,
)
from fedoptima.core.messages import nbytes
from fedoptima.core.types import NodeId
from fedoptima.trace.record import Record

_ROUNDING = 1e-9  # seconds: sums of the same waits, added up in another order


class Kind(StrEnum):
    TRAIN = "train"
    REUSE = "reuse"  # trains on a batch again
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
    CutStep: Kind.TRAIN,
    ReusedStep: Kind.REUSE,
    Merge: Kind.MERGE,
    BasedMerge: Kind.MERGE,
    FoldedMerge: Kind.MERGE,
    CutMerge: Kind.MERGE,
    RobustMerge: Kind.MERGE,
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
    """Feed it every record, in order, after the usage account. It keeps only what is open."""

    def __init__(self, usage: UsageAccount) -> None:
        self._usage = usage
        self._transfers = TransferAccount()
        self._shown: defaultdict[NodeId, _Shown] = defaultdict(_Shown)
        self._final: list[Span] = []
        self._over = False
        usage.listen(self)

    @property
    def now(self) -> float:
        """The last record's time; once the server has halted, nothing counts any more."""
        return self._usage.now

    def observe(self, record: Record) -> list[Span]:
        """The spans that are final now. A wait is, once the node goes on."""
        if self._over:
            return []
        self._over = self._usage.over
        spans, self._final = self._final, []
        for transfer in self._transfers.observe(record):
            spans += _both_ends(transfer)
        return spans

    def finish(self) -> list[Span]:
        """The open ones, as of the last record. Asking changes nothing."""
        spans = [span for clock in self._usage.clocks.values() for span in self._open(clock)]
        for transfer in self._transfers.in_flight(self.now):
            if transfer.received > transfer.sent:
                spans += _both_ends(transfer)
        return spans

    # ---- from the clocks of the usage account ------------------------------------------------

    def spent(self, clock: NodeClock, now: float) -> None:
        shown = self._shown[clock.name]
        for span in _spent(clock, shown, now):
            if span.kind is Kind.IDLE_2:
                shown.waiting_2 += span.end - span.start
            self._final.append(span)
        shown.until = now

    def returned(self, clock: NodeClock, left: float, now: float) -> None:
        self._final.append(Span(clock.name, Kind.AWAY, left, now))

    def _open(self, clock: NodeClock) -> list[Span]:
        if clock.since is not None:
            return _spent(clock, self._shown.get(clock.name, _Shown()), self.now)
        if clock.left is not None and self.now > clock.left:
            return [Span(clock.name, Kind.AWAY, clock.left, self.now)]
        return []


@dataclass(slots=True)
class _Shown:
    """How much of a node's time has been made into spans."""

    until: float = 0.0
    waiting_2: float = 0.0  # seconds of it


def _spent(clock: NodeClock, shown: _Shown, now: float) -> list[Span]:
    """What the time since the clock was last read was spent on, as far as it is not shown yet."""
    assert clock.since is not None
    start = max(clock.since, shown.until)
    if now <= start:
        return []
    if clock.working:
        job = clock.job
        peer = job.origin if isinstance(job, ServerStep) else ""
        kind = _KINDS.get(type(job), Kind.OTHER)
        return [Span(clock.name, kind, start, now, type(job).__name__, peer)]
    if not clock.connected:
        return [Span(clock.name, Kind.AWAY, start, now)]
    return _wait(clock.name, start, now, clock.waiting_2 - shown.waiting_2)


def _wait(node: NodeId, start: float, end: float, owed: float) -> list[Span]:
    """Since its update arrived; for slower devices first, as long as was booked at the merge.

    A real device's clock may say that it was still at work then. It waits a little later.
    """
    if owed <= _ROUNDING:
        return [Span(node, Kind.IDLE_1, start, end)]
    turn = start + owed
    if turn >= end - _ROUNDING:
        return [Span(node, Kind.IDLE_2, start, end)]
    return [Span(node, Kind.IDLE_2, start, turn), Span(node, Kind.IDLE_1, turn, end)]


def _both_ends(transfer: Transfer) -> tuple[Span, Span]:
    sender, receiver, message, sent, received = transfer
    what, size = type(message).__name__, nbytes(message)
    return (
        Span(sender, Kind.SEND, sent, received, what, receiver, size),
        Span(receiver, Kind.RECEIVE, sent, received, what, sender, size),
    )
