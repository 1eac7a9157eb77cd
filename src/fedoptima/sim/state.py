"""Everything that changes during a simulation, except its engines: what a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from fedoptima.core.device import DeviceCore
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.events import Measured, Metrics, Rejected
from fedoptima.core.jobs import ExportModel, Job, computed
from fedoptima.core.serialization import register
from fedoptima.core.server import ServerCore
from fedoptima.core.types import NodeId, value
from fedoptima.sim.faults import Change, Churn
from fedoptima.sim.network import Envelope, Link, Passing, ServerLink


class EventKernel:
    """Virtual time: a heap of (time, order, item), and nothing else.

    Items due at the same time come out in the order they were put in: a run is deterministic.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, object]] = []
        self._order = 0

    def at(self, time: float, item: object) -> None:
        if time < self.now:
            raise InvariantBroken(f"{item} is due at {time}, but it is already {self.now}")
        self._order += 1
        heappush(self._heap, (time, self._order, item))

    def pop(self) -> object | None:
        """Advance to the next item; None when nothing can happen any more."""
        if not self._heap:
            return None
        self.now, _, item = heappop(self._heap)
        return item

    def holds(self, kind: type) -> bool:
        """Is something of this kind still to come?"""
        return any(isinstance(item, kind) for _, _, item in self._heap)


# ---- what the kernel's heap holds, apart from the fleet's changes -------------------------------


@value
class JobDue:
    node: NodeId
    incarnation: int
    ticket: int


@value
class EnvelopeSent:
    device: NodeId
    upward: bool
    generation: int


@value
class EnvelopePassed:
    """The server's own link."""

    upward: bool
    generation: int


@value
class EnvelopeArrives:
    device: NodeId
    upward: bool
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class TimerDue:
    key: str
    number: int


@dataclass(frozen=True, slots=True)
class EvaluationDue:
    index: int
    metrics: Metrics
    error: str = ""


@dataclass(frozen=True, slots=True)
class FaultDue:
    """An evaluation finds that a device's batches must not be used."""

    event: Rejected


@dataclass(frozen=True, slots=True)
class DropDue:
    """The server ends a device's session."""

    device: NodeId
    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChurnDue:
    tick: int


# ---- nodes --------------------------------------------------------------------------------------


class SimDevice:
    """A device's core and its surroundings, as far as they change."""

    computed = 0.0  # here, because checkpoints of earlier versions do not have it

    def __init__(self, machine: DeviceCore, up: Link, down: Link) -> None:
        self.machine = machine
        self.up = up
        self.down = down
        self.session = 0
        self.connected = False
        self.present = True  # its process is running
        self.away_by_churn = False  # churn ended its process, and may start it again
        self.trouble = ""  # the error that took it out of the run
        self.hung = False
        self.job: tuple[int, Job] | None = None
        self.computed = 0.0  # seconds for its next update, where devices have cuts of their own

    def begin(self) -> None:
        """Its process does."""
        self.present, self.hung, self.away_by_churn = True, False, False
        self.job, self.trouble, self.computed = None, "", 0.0

    def end(self, trouble: str) -> None:
        self.present = self.away_by_churn = False
        self.job, self.trouble = None, trouble

    def measure(self, job: Job, seconds: float) -> Measured | None:
        """What is known with an update that is ready; a job has taken so long."""
        before, self.computed = self.computed, computed(self.computed, job, seconds)
        ready = isinstance(job, ExportModel)
        return Measured(before, self.up.bytes_per_second) if ready else None

    def link(self, *, upward: bool) -> Link:
        return self.up if upward else self.down


class SimServer:
    # Its own link, which all devices share; None: it is wide enough, as in older checkpoints.
    up: ServerLink | None = None
    down: ServerLink | None = None

    def __init__(self, machine: ServerCore) -> None:
        self.machine = machine
        self.job: tuple[int, Job] | None = None
        self.timers: dict[str, int] = {}  # the number under which a timer was set last

    def link(self, *, upward: bool) -> ServerLink | None:
        return self.up if upward else self.down


@dataclass
class SimState:
    server: SimServer
    devices: dict[NodeId, SimDevice]
    kernel: EventKernel = field(default_factory=EventKernel)
    events: int = 0  # delivered to cores so far
    timer_number: int = 0


register(FaultDue, DropDue, JobDue, TimerDue, EvaluationDue, ChurnDue)
register(Envelope, EnvelopeSent, EnvelopePassed, EnvelopeArrives, Passing, Link, ServerLink)
register(Change, Churn, EventKernel, SimDevice, SimServer, SimState)
