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
from fedoptima.core.jobs import LoadModel, Merge, PlanRun, Prepare
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

    def usage(self) -> Usage:
        idle_2 = min(self.waiting_2, self.idle)
        return Usage(self.busy, self.idle - idle_2, idle_2)


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
        match record.event:
            case JobDone(job=job) | JobFailed(job=job):
                node.advance(now)
                node.working = False
                if isinstance(job, PlanRun):
                    node.since, node.connected = now, True
            case Connected():
                node.advance(now)
                node.connected = True
            case Disconnected(peer) if record.node == SERVER:
                self._lost(peer, now)
            case Disconnected() if node.interrupted:  # it lives, and works on offline
                node.since, node.working = now, True
            case Received(sender, _, ModelUpdate()) if record.node == SERVER:
                self._arrived[sender] = now
        for effect in record.effects:
            match effect:
                case Run(_, job) if not isinstance(job, Prepare | PlanRun):
                    if node.since is None and isinstance(job, LoadModel):
                        node.since = now
                    node.advance(now)
                    node.working = True
                    if isinstance(job, Merge):
                        self._book_waits(job)
                case Send(to, _, GlobalModel()):
                    self._arrived.pop(to, None)
                case Halt() if record.node == SERVER:
                    self._close(now)

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
            self._nodes[device].waiting_2 += last - arrived

    def _close(self, now: float) -> None:
        for node in self._nodes.values():
            node.advance(now)
        self._over = True

    def usage(self) -> Mapping[NodeId, Usage]:
        """As of the last record."""
        for node in self._nodes.values():
            if not self._over:
                node.advance(self._now)
        return {name: node.usage() for name, node in sorted(self._nodes.items())}
