"""Busy and idle time of every node, and why it was idle.

A node is busy while its engine runs a job; a server's steps on batches that it has trained on
before are counted apart (reused), and comparisons leave them out. All other time between its first
and last moment in the run is idle. Type II: waiting for a slower device - from the arrival of the
node's own update at the server to the arrival of the last one that the same merge needed, or, if it
is later, to the moment when a barrier no longer waits for a device that has left or says nothing.
Type I: every other wait (for gradients, activations, a merged model, a transfer). The two sum to
the idle time exactly, because Type I is what is left.

Start-up is no part of the run: the server's first moment is the finished plan, a device's is the
first model it loads or rebases on (again after an absence). Nor is time away, unless the device
trains offline.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedoptima.core.effects import Halt, Note, NoteKind, Run, Send
from fedoptima.core.events import (
    Connected,
    Disconnected,
    Extended,
    Gap,
    JobDone,
    JobFailed,
    Received,
)
from fedoptima.core.jobs import (
    FoldedMerge,
    Job,
    LoadModel,
    Merge,
    PlanRun,
    Prepare,
    Rebase,
    ReusedStep,
)
from fedoptima.core.messages import GlobalModel, ModelUpdate
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record

_GIVEN_UP = (NoteKind.NOT_WAITED_FOR, NoteKind.DEVICE_FAILED)


@dataclass(frozen=True, slots=True)
class Usage:
    busy: float  # seconds
    idle_1: float
    idle_2: float
    reused: float = 0.0  # training on batches again, while there was nothing else to do

    @classmethod
    def mean(cls, uses: Collection[Usage]) -> Usage:
        """Of several nodes, of each kind of seconds: a node counts by its time in the run."""
        count = max(1, len(uses))
        return cls(
            sum(use.busy for use in uses) / count,
            sum(use.idle_1 for use in uses) / count,
            sum(use.idle_2 for use in uses) / count,
            sum(use.reused for use in uses) / count,
        )

    @property
    def idle(self) -> float:
        return self.idle_1 + self.idle_2

    @property
    def span(self) -> float:
        return self.busy + self.reused + self.idle

    @property
    def utilisation(self) -> float:
        """Without what was reused."""
        return self.busy / self.span if self.span else 0.0

    @property
    def reused_share(self) -> float:
        return self.reused / self.span if self.span else 0.0

    @property
    def idle_1_share(self) -> float:
        return self.idle_1 / self.span if self.span else 0.0

    @property
    def idle_2_share(self) -> float:
        return self.idle_2 / self.span if self.span else 0.0


class ClockListener(Protocol):
    """Is notified of the stretches of time that the sums are made of."""

    def spent(self, clock: NodeClock, now: float) -> None:
        """The node has been at the same thing until now; called before the clock is advanced."""

    def returned(self, clock: NodeClock, left: float, now: float) -> None:
        """The node was away in between."""


class NodeClock:
    """One node's clock: since when it is busy or idle, and the sums so far."""

    def __init__(self, name: NodeId, listener: ClockListener | None = None) -> None:
        self.name = name
        self.listener = listener
        self.busy = 0.0
        self.reused = 0.0
        self.idle = 0.0
        self.waiting_2 = 0.0
        self.since: float | None = None  # None: not in the run at the moment
        self.left: float | None = None  # since when it is away, if it was in the run before
        # The latest, for the listener: without one a merge's tensors would be kept until the next.
        self.job: Job | None = None
        self.working = False
        self.reusing = False  # while it works
        self.connected = False
        self.interrupted = False  # it was working when the server lost it

    def advance(self, now: float) -> None:
        if self.since is None:
            return
        self.notify(now)
        if self.working and self.reusing:
            self.reused += now - self.since
        elif self.working:
            self.busy += now - self.since
        elif self.connected:
            self.idle += now - self.since
        self.since = now

    def notify(self, now: float) -> None:
        """Without moving the clock: sums must not come out different for who listens."""
        if self.listener is not None and self.since is not None and now > self.since:
            self.listener.spent(self, now)

    def enter(self, now: float) -> None:
        self.since = now
        if self.left is not None:
            if self.listener is not None and now > self.left:
                self.listener.returned(self, self.left, now)
            self.left = None

    def leave(self, now: float) -> None:
        self.advance(now)
        if self.since is not None:
            self.left = now
        self.interrupted = self.working
        self.connected = self.working = False
        self.since = None

    def usage(self, now: float) -> Usage:
        """Asking moves no clock: sums would come out different for who asks on the way."""
        busy, idle, reused = self.busy, self.idle, self.reused
        if self.since is not None:
            if self.working and self.reusing:
                reused += now - self.since
            elif self.working:
                busy += now - self.since
            elif self.connected:
                idle += now - self.since
        idle_2 = min(self.waiting_2, idle)  # equal where it did nothing else, but for rounding
        return Usage(busy, idle - idle_2, idle_2, reused)


class UsageAccount:
    """Feed it every record, in order; ask it at any time."""

    def __init__(self) -> None:
        self.clocks: dict[NodeId, NodeClock] = {SERVER: NodeClock(SERVER)}
        self.now = 0.0  # the last record's time; once the server has halted, nothing counts
        self.over = False
        self._arrived: dict[NodeId, float] = {}  # updates at the server, not answered yet
        self._given_up = 0.0  # when the last device left, or was not waited for any longer
        self._listener: ClockListener | None = None

    def listen(self, listener: ClockListener) -> None:
        """Before the first record."""
        self._listener = self.clocks[SERVER].listener = listener

    def observe(self, record: Record) -> None:
        if self.over and not isinstance(record.event, Extended):
            return
        self.now = now = record.at
        node = self.clocks.get(record.node)
        if node is None:
            node = self.clocks[record.node] = NodeClock(record.node, self._listener)
        event = record.event
        match event:
            case JobDone() | JobFailed():
                node.advance(now)
                node.working = False
                if isinstance(event.job, PlanRun):
                    node.enter(now)
                    node.connected = True
            case Received():
                if record.node == SERVER and isinstance(event.message, ModelUpdate):
                    self._update_arrived(event.sender, now)
            case Connected():
                node.advance(now)
                node.connected = True
            case Extended():
                self.over = False
            case Gap():
                node.advance(now)
                running = event.running.job if event.running is not None else None
                node.working, node.reusing = running is not None, isinstance(running, ReusedStep)
            case Disconnected():
                if record.node == SERVER:
                    self._lost(event.peer, now)
                    self._given_up = now
                elif node.interrupted:  # it is alive, and goes on offline
                    node.enter(now)
                    node.working = True
        for effect in record.effects:
            match effect:
                case Run():
                    self._start(node, effect.job, now)
                case Send():
                    if isinstance(effect.message, GlobalModel):
                        self._arrived.pop(effect.to, None)
                case Note():
                    if effect.kind in _GIVEN_UP:
                        self._given_up = now
                case Halt():
                    self.over = self.over or record.node == SERVER

    def _update_arrived(self, device: NodeId, now: float) -> None:
        self._arrived[device] = now
        clock = self.clocks.get(device)
        if clock is not None and not clock.working:
            clock.notify(now)  # so far it has waited for the transfer, and now for other devices

    def _start(self, node: NodeClock, job: Job, now: float) -> None:
        if isinstance(job, Prepare | PlanRun):
            return
        if node.since is None and isinstance(job, LoadModel | Rebase):
            node.enter(now)
        node.advance(now)
        node.working, node.reusing = True, isinstance(job, ReusedStep)
        node.job = job if node.listener is not None else None
        if isinstance(job, Merge):
            self._book_waits(job)

    def _lost(self, device: NodeId, now: float) -> None:
        """The server says it first; a device whose process has ended says nothing any more."""
        self._arrived.pop(device, None)
        node = self.clocks.get(device)
        if node is not None:
            node.leave(now)

    def _book_waits(self, merge: Merge) -> None:
        """Only devices that were not answered meanwhile have waited for the others."""
        arrivals = {
            p.device: self._arrived[p.device] for p in merge.parts if p.device in self._arrived
        }
        last = max(arrivals.values(), default=0.0)
        if _has_barrier(merge):
            last = max(last, self._given_up)
        for device, arrived in arrivals.items():
            node = self.clocks.get(device)
            # Else it is back, but has loaded no model yet; or its records have not come.
            if node is not None and node.since is not None:
                node.waiting_2 += last - arrived

    def usage(self) -> Mapping[NodeId, Usage]:
        """As of the last record."""
        return {name: node.usage(self.now) for name, node in sorted(self.clocks.items())}


def _has_barrier(merge: Merge) -> bool:
    """As far as it can be told: one update that is not a sum may also have been merged by itself,
    and several that are changes were collected while their devices went on."""
    several = isinstance(merge, FoldedMerge) or len(merge.parts) > 1
    return several and merge.server_optimizer is None
