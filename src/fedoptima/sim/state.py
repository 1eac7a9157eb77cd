"""All that changes while a simulation runs, apart from its engines: what a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedoptima.core.device import DeviceCore
from fedoptima.core.events import Metrics
from fedoptima.core.jobs import Job
from fedoptima.core.serialization import register
from fedoptima.core.server import ServerCore
from fedoptima.core.types import NodeId
from fedoptima.sim.faults import Change, Churn
from fedoptima.sim.kernel import EventKernel
from fedoptima.sim.network import Envelope, Link

# ---- what the kernel's heap holds, beside the fleet's changes -----------------------------------


@dataclass(frozen=True, slots=True)
class JobDue:
    node: NodeId
    incarnation: int
    ticket: int


@dataclass(frozen=True, slots=True)
class EnvelopeSent:
    device: NodeId
    upward: bool
    generation: int


@dataclass(frozen=True, slots=True)
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
class ChurnDue:
    tick: int


# ---- nodes --------------------------------------------------------------------------------------


class SimDevice:
    """A device's core and its surroundings, as far as they change."""

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

    def link(self, *, upward: bool) -> Link:
        return self.up if upward else self.down


class SimServer:
    def __init__(self, machine: ServerCore) -> None:
        self.machine = machine
        self.job: tuple[int, Job] | None = None
        self.timers: dict[str, int] = {}  # the number under which a timer was set last


@dataclass
class SimState:
    server: SimServer
    devices: dict[NodeId, SimDevice]
    kernel: EventKernel = field(default_factory=EventKernel)
    events: int = 0  # told to cores so far
    timer_number: int = 0


register(JobDue, EnvelopeSent, EnvelopeArrives, TimerDue, EvaluationDue, ChurnDue)
register(Change, Churn, Envelope, Link, EventKernel, SimDevice, SimServer, SimState)
