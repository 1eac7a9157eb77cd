"""The interfaces between the core and its driver."""

from __future__ import annotations

from dataclasses import field
from typing import Protocol

from fedoptima.core.effects import Effect, Note, NoteKind
from fedoptima.core.errors import NotFinite, ProtocolViolation, TrainingDiverged, describe
from fedoptima.core.events import Event, JobDone, JobFailed, Rejected
from fedoptima.core.jobs import Job
from fedoptima.core.types import NodeId, Payload, PayloadId, value


class Machine(Protocol):
    """Events in, effects out. The driver calls it from one thread and never re-enters it."""

    stopped: bool

    def handle(self, event: Event, now: float) -> list[Effect]: ...
    def check(self) -> None: ...


@value
class Outcome:
    """The outcome of a job."""

    result: Payload
    samples: int = 0
    text: str = field(default="", repr=False)
    micro_batches: int = 1

    def event(self, ticket: int, job: Job) -> JobDone:
        return JobDone(ticket, job, self.result, self.samples, self.text, self.micro_batches)


def job_failed(ticket: int, job: Job, error: Exception) -> JobFailed:
    return JobFailed(ticket, job, describe(error), diverged=isinstance(error, TrainingDiverged))


def rejected(sender: NodeId, session: int, error: ProtocolViolation) -> Rejected:
    return Rejected(sender, session, describe(error), diverged=isinstance(error, NotFinite))


def broke_the_protocol(peer: NodeId, error: ProtocolViolation) -> Note:
    return Note(NoteKind.PEER_DROPPED, peer, str(error))


class ComputeEngine(Protocol):
    """Executes jobs, one at a time; its state changes only through them."""

    def execute(self, job: Job, result: PayloadId) -> Outcome: ...
