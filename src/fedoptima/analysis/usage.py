"""Busy and idle time of every node, and why it was idle.

A node is busy while its engine runs a job. All other time between its first and last moment in the
run is idle. Type II: waiting for a slower device - from the arrival of the node's own update at the
server to the arrival of the last one that the same merge needed. Type I: every other wait (for
gradients, activations, a merged model, a transfer). The two sum to the idle time exactly, because
Type I is what is left.

Start-up is no part of the run: the server's first moment is the finished plan, a device's is the
first model it loads (again after an absence). Nor is time away, unless the device trains offline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedoptima.core.effects import Halt, Run, Send
from fedoptima.core.events import Connected, Disconnected, JobDone, JobFailed, Received
from fedoptima.core.jobs import Job, LoadModel, Merge, PlanRun, Prepare
from fedoptima.core.messages import GlobalModel, ModelUpdate
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record


@dataclass(frozen=True, slots=True)
class Usage:
    busy: float  # seconds
    idle_1: float
    idle_2: float

    @property
    def idle(self) -> float:
        return self.idle_1 + self.idle_2

    @property
    def span(self) -> float:
        return self.busy + self.idle

    @property
    def utilisation(self) -> float:
        return self.busy / self.span if self.span else 0.0

    @property
    def idle_1_share(self) -> float:
        return self.idle_1 / self.span if self.span else 0.0

    @property
    def idle_2_share(self) -> float:
        return self.idle_2 / self.span if self.span else 0.0


class _Node:
    """One node's clock: since when it is busy or idle, and the sums so far."""

    def __init__(self) -> None:
        self.busy = 0.0
        self.idle = 0.0
        self.waiting_2 = 0.0
        self.since: float | None = None  # None: not in the run at the moment
        self.working = False
        self.connected = False
        self.interrupted = False  # it was working when the server lost it

    def advance(self, now: float) -> None:
        if self.since is None:
            return
        if self.working:
            self.busy += now - self.since
        elif self.connected:
            self.idle += now - self.since
        self.since = now

    def usage(self, now: float) -> Usage:
        """Asking moves no clock: sums would come out different for who asks on the way."""
        busy, idle = self.busy, self.idle
        if self.since is not None:
            if self.working:
                busy += now - self.since
            elif self.connected:
                idle += now - self.since
        idle_2 = min(self.waiting_2, idle)  # equal where it did nothing else, but for rounding
        return Usage(busy, idle - idle_2, idle_2)


class UsageAccount:
    """Feed it every record, in order; ask it at any time."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, _Node] = {SERVER: _Node()}
        self._arrived: dict[NodeId, float] = {}  # updates at the server, not answered yet
        self._now = 0.0
        self._over = False

    def observe(self, record: Record) -> None:
        if self._over:
            return
        self._now = now = record.at
        node = self._nodes.get(record.node)
        if node is None:
            node = self._nodes[record.node] = _Node()
        event = record.event
        match event:
            case JobDone() | JobFailed():
                node.advance(now)
                node.working = False
                if isinstance(event.job, PlanRun):
                    node.since, node.connected = now, True
            case Received():
                if record.node == SERVER and isinstance(event.message, ModelUpdate):
                    self._arrived[event.sender] = now
            case Connected():
                node.advance(now)
                node.connected = True
            case Disconnected():
                if record.node == SERVER:
                    self._lost(event.peer, now)
                elif node.interrupted:  # it lives, and works on offline
                    node.since, node.working = now, True
        for effect in record.effects:
            match effect:
                case Run():
                    self._start(node, effect.job, now)
                case Send():
                    if isinstance(effect.message, GlobalModel):
                        self._arrived.pop(effect.to, None)
                case Halt():
                    self._over = self._over or record.node == SERVER

    def _start(self, node: _Node, job: Job, now: float) -> None:
        if isinstance(job, Prepare | PlanRun):
            return
        if node.since is None and isinstance(job, LoadModel):
            node.since = now
        node.advance(now)
        node.working = True
        if isinstance(job, Merge):
            self._book_waits(job)

    def _lost(self, device: NodeId, now: float) -> None:
        """The server says it first; a device whose process has ended says nothing any more."""
        self._arrived.pop(device, None)
        node = self._nodes.get(device)
        if node is not None:
            node.advance(now)
            node.interrupted = node.working
            node.connected = node.working = False
            node.since = None

    def _book_waits(self, merge: Merge) -> None:
        """Only devices that were not answered meanwhile have waited for the others."""
        arrivals = {
            p.device: self._arrived[p.device] for p in merge.parts if p.device in self._arrived
        }
        last = max(arrivals.values(), default=0.0)
        for device, arrived in arrivals.items():
            node = self._nodes.get(device)
            # Else it is back, but has loaded no model yet; or its records have not come.
            if node is not None and node.since is not None:
                node.waiting_2 += last - arrived

    def usage(self) -> Mapping[NodeId, Usage]:
        """As of the last record."""
        return {name: node.usage(self._now) for name, node in sorted(self._nodes.items())}
