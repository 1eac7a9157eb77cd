"""What a core is notified of. Events are facts."""

from __future__ import annotations

from dataclasses import dataclass

from fedoptima.core.effects import Run
from fedoptima.core.jobs import Job
from fedoptima.core.messages import Message
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import NodeId, Payload, value

Metrics = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Connected:
    peer: NodeId
    session: int  # a reconnect has a higher number


@dataclass(frozen=True, slots=True)
class Disconnected:
    peer: NodeId
    session: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """The server's process is a new one: all its sessions are lost, and `Disconnected` follows."""


@value
class Received:
    sender: NodeId
    session: int
    message: Message


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message came that the driver did not let through: its sender broke the protocol."""

    sender: NodeId
    session: int
    error: str
    diverged: bool = False  # because of values that are not finite


@value
class JobDone:
    ticket: int
    job: Job
    result: Payload
    samples: int = 0  # how many samples the job trained on
    text: str = ""  # PlanRun: the plan
    micro_batches: int = 1  # PlanRun: parts of a mini-batch in flight, if the method asks


@dataclass(frozen=True, slots=True)
class JobFailed:
    ticket: int
    job: Job
    error: str
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class FailedLate:
    """What this device has done and sent turns out to have failed. Only in a simulation, which does
    not wait for values: over the network it would have been a `JobFailed`."""

    error: str
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """How long this device has computed for the update that it hands in next, and what its uplink
    carries. A core has no clock, and a replay may have another one."""

    seconds: float
    bytes_per_second: float  # 0: it was not in use enough to tell


@dataclass(frozen=True, slots=True)
class Evaluated:
    index: int
    metrics: Metrics  # empty when there was nothing to evaluate (dry)


@dataclass(frozen=True, slots=True)
class EvaluationFailed:
    index: int
    error: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    key: str


@dataclass(frozen=True, slots=True)
class Extended:
    """The run is to end later than it was told before; also after its end."""

    stop: StopRule


@dataclass(frozen=True, slots=True)
class Ended:
    """The operator wants the run to end now, with what it has reached."""

    reason: str


# ---- what a driver records of itself: no core is told --------------------------------------------


@dataclass(frozen=True, slots=True)
class DiskFailing:
    """What this node should write cannot be written; it goes on without."""

    error: str


@dataclass(frozen=True, slots=True)
class DiskWorks:
    """It is written again."""


Lane = tuple[NodeId, int, bool, bool]  # a device's session; upward or not; bulk or not


@value
class Gap:
    """In the place of a node's records that could not be written, the last just before this."""

    records: int
    since: float  # when the first of them was made
    mail: tuple[tuple[Lane, int], ...]  # how many messages they had, sent and received
    running: Run | None = None  # the job that the engine has now
    core: str = ""  # the core as it is now, in its plain form as JSON; empty: not known


DriverEvent = DiskFailing | DiskWorks | Gap

Event = (
    Connected
    | Disconnected
    | Restarted
    | Received
    | Rejected
    | JobDone
    | JobFailed
    | FailedLate
    | Measured
    | Evaluated
    | EvaluationFailed
    | TimerFired
    | Extended
    | Ended
)
