"""What a core asks of its driver. Effects are orders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fedoptima.core.jobs import Job, Part
from fedoptima.core.messages import Message
from fedoptima.core.types import NodeId, value


@value
class Send:
    to: NodeId
    session: int  # dropped by the driver if that session is over
    message: Message


@value
class Run:
    """Give the engine a job; answered by exactly one JobDone or JobFailed of that ticket."""

    ticket: int
    job: Job


@dataclass(frozen=True, slots=True)
class Fold:
    """Have the engine add an update to the sum that the next merge takes (`jobs.AddUp`).

    Before any job that is ordered later, and never while one runs. Nothing is told of it: what goes
    wrong, the merge says. The update is not used again by anyone.
    """

    part: Part


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Measure a copy of the weights as they are now, off the clock."""

    index: int
    epochs: float
    version: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Replaces a timer of the same key."""

    key: str
    at: float


class NoteKind(StrEnum):
    DEVICE_FAILED = "device failed"
    PEER_DROPPED = "peer dropped"
    LATE_BATCH_DROPPED = "late batch dropped"
    UPDATE_REFUSED = "update refused"  # too late, or of a history that is gone
    UPDATE_KEPT = "update kept"  # its device has left; it counts all the same
    UPDATE_SCALED = "update scaled"  # its samples count in part; the text is the factor
    OUTLIER_REFUSED = "outlier refused"  # by robust merging
    NOT_PLANNED_FOR = "not planned for"
    SHARE_CAPPED = "share capped"
    NOT_WAITED_FOR = "not waited for"
    REPLANNED = "re-planned"  # from now on it has another cut; the text says why


DOUBTS = (NoteKind.NOT_PLANNED_FOR, NoteKind.SHARE_CAPPED)  # about what a device says of itself
FIGURES = (NoteKind.UPDATE_SCALED,)  # for the analysis alone: one with every update
PROBLEMS = (NoteKind.DEVICE_FAILED, NoteKind.PEER_DROPPED)  # they report a problem with a device


@dataclass(frozen=True, slots=True)
class Note:
    """Something an operator or the analysis wants to know; changes nothing."""

    kind: str  # a NoteKind; read from a trace a plain string, perhaps of another version
    about: NodeId
    text: str = ""


@dataclass(frozen=True, slots=True)
class Drop:
    """End a peer's session because of what it has sent; `Disconnected` follows."""

    peer: NodeId
    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class Halt:
    reason: str
    failed: bool = False


Effect = Send | Run | Fold | Evaluate | SetTimer | Note | Drop | Halt
