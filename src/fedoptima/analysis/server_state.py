"""What the server holds, and what became of every update: read off the server's records.

An update waits (in the scheduler or at a barrier), may be accepted (a buffer keeps it and its
device goes on), is merged or refused; one that waits is lost with its device, unless a note says
that it is kept; one that is accepted is not. Its samples count towards the epochs when it is
accepted or handed to a merge, whichever comes first; those of a refused one are counted apart.

The other accounts of the server's side read this one; feed it first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from fedoptima.core.effects import Effect, Fold, Note, NoteKind, Run, Send
from fedoptima.core.events import Connected, Disconnected, Gap, JobDone, Received
from fedoptima.core.jobs import (
    CloseCopy,
    Job,
    Merge,
    OpenCopy,
    Part,
    PlanRun,
    ReusedStep,
    RobustMerge,
    ServerStep,
)
from fedoptima.core.messages import ActivationBatch, Failed, GlobalModel, Join, Message, ModelUpdate
from fedoptima.core.plan import recorded_plan
from fedoptima.core.robust import merged_parts, refusals
from fedoptima.core.shares import Shares
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.trace.gap import core_after
from fedoptima.trace.record import Record

_NOT_TAKEN = (NoteKind.LATE_BATCH_DROPPED, NoteKind.PEER_DROPPED)


class ServerState:
    """Feed it every record, in order."""

    def __init__(self) -> None:
        self.running = False  # there is a plan
        self.version = 0  # t
        self.epochs = 0.0
        self.refused_samples = 0  # that devices had trained on
        self._decided = 0  # samples of updates that were accepted or refused, trained on or not
        self.model_bytes = 0  # the global model as devices are sent it
        self.side_bytes = 0  # one server side
        self.copies: dict[NodeId, None] = {}  # devices with a server side of their own
        self.waiting = 0  # activation batches received and not used yet (parts count singly)
        self.waiting_bytes = 0
        self.step_bytes = 0  # the batch that is being trained on
        self.kept_bytes = 0  # batches that may be used again, when one of them was last
        self.step_age = 0.0  # how long it had waited
        self.update_bytes = 0  # what was handed in, each update or their sum
        self._sum_bytes = 0
        self.merging: dict[PayloadId, ModelUpdate] = {}
        self.known: dict[NodeId, None] = {}  # every device that ever joined
        self._shares = Shares()
        self._epoch = 1  # samples in one, when a device was there last
        self._sessions: dict[NodeId, int] = {}
        self._members: dict[NodeId, None] = {}
        self._batches: dict[NodeId, deque[tuple[float, int]]] = {}  # (arrival, bytes)
        self._pending: dict[NodeId, ModelUpdate] = {}
        self._accepted: dict[PayloadId, ModelUpdate] = {}
        self._counted: dict[NodeId, float] = {}  # of the samples of the update just decided on

    def observe(self, record: Record) -> None:
        if record.node != SERVER:
            return
        event = record.event
        match event:
            case Received():
                if self._sessions.get(event.sender) == event.session:
                    self._receive(event.sender, event.message, record)
            case JobDone():
                self._job_done(event)
            case Connected():
                if event.peer in self._sessions:
                    self._lose(event.peer, record)
                self._sessions[event.peer] = event.session
            case Disconnected():
                if self._sessions.get(event.peer) == event.session:
                    self._lose(event.peer, record)
            case Gap():
                self._skip(event)
        for effect in record.effects:
            match effect:
                case Run():
                    self._start(effect.job, record.at)
                case Send():
                    if isinstance(effect.message, GlobalModel):
                        self._answered(effect.to)
                case Fold():
                    self._add_up(effect.part)
                case Note():
                    if effect.kind == NoteKind.UPDATE_REFUSED:
                        self._refuse(effect.about)
                    elif effect.kind == NoteKind.UPDATE_SCALED:
                        self._counted[effect.about] = float(effect.text)

    def trained_epochs(self, processed: int) -> float:
        """Of all the samples that devices have processed, those of refused updates left out."""
        elsewhere = processed - self._decided
        # Fewer than 0 while devices' own records are still on their way.
        return self.epochs + max(0, elsewhere) / self._epoch

    # ---- what comes in -----------------------------------------------------------------------

    def _receive(self, device: NodeId, message: Message, record: Record) -> None:
        match message:
            case ActivationBatch():
                if self.running and _taken(record.effects):
                    self._batches[device].append((record.at, message.data.nbytes))
                    self.waiting += 1
                    self.waiting_bytes += message.data.nbytes
            case ModelUpdate():
                if self.running and _taken(record.effects):
                    self._forget_pending(device)
                    self._pending[device] = message.without_tensors()
                    self.update_bytes += message.data.nbytes
            case Join():
                if device not in self._members and _taken(record.effects):
                    self._members[device] = None
                    self._batches[device] = deque()
                    self.known[device] = None
                    self._shares.add(device, message.samples)
                    self._epoch = self._shares.total
            case Failed():
                self._lose(device, record)

    def _lose(self, device: NodeId, record: Record) -> None:
        self._sessions.pop(device, None)
        self._members.pop(device, None)
        self._shares.remove(device)
        self._epoch = self._shares.total or self._epoch
        for _, nbytes in self._batches.pop(device, ()):
            self.waiting -= 1
            self.waiting_bytes -= nbytes
        if not any(isinstance(e, Note) and e.kind == NoteKind.UPDATE_KEPT for e in record.effects):
            self._forget_pending(device)

    def _forget_pending(self, device: NodeId) -> None:
        update = self._pending.pop(device, None)
        if update is not None:
            self.update_bytes -= update.data.nbytes

    def _skip(self, gap: Gap) -> None:
        """What it holds after records that are missing is not known; who is there may be."""
        self._batches = {device: deque() for device in self._batches}
        self.waiting = self.waiting_bytes = self.step_bytes = 0
        self.update_bytes = self._sum_bytes = 0
        for held in (self._pending, self._accepted, self.merging):
            held.clear()
        core = core_after(gap)
        if core is None:
            return
        self.running = core.planned
        self.version, self.epochs = core.version, core.progress.epochs
        self._sessions = dict(core.sessions)
        for device in [name for name in self._members if name not in core.members]:
            del self._members[device]
            self._shares.remove(device)
        for device, member in core.members.items():
            if device not in self._members:
                self._members[device] = self.known[device] = None
                self._shares.add(device, member.join.samples)
        self._batches = {device: deque() for device in self._members}
        self._epoch = self._shares.total or self._epoch

    # ---- what becomes of it ------------------------------------------------------------------

    def _start(self, job: Job, now: float) -> None:
        match job:
            case ReusedStep():
                self.kept_bytes = job.kept
            case ServerStep():
                waiting = self._batches.get(job.origin)
                if not waiting:  # it came when records are missing
                    self.step_bytes, self.step_age = 0, 0.0
                    return
                arrival, nbytes = waiting.popleft()  # a device's go in order
                self.waiting -= 1
                self.waiting_bytes -= nbytes
                self.step_bytes = nbytes
                self.step_age = now - arrival
            case Merge():
                for part in job.parts:
                    update = self._accepted.pop(part.data.id, None)
                    if update is None:
                        update = self._pending.pop(part.device, None)
                        if update is None:  # it came when records are missing
                            continue
                        self._accept(part.device, update)
                    self.merging[part.data.id] = update
            case OpenCopy():
                self.copies[job.device] = None

    def _add_up(self, part: Part) -> None:
        """From now on there is one sum, in double precision, for all that are added to it."""
        update = self._pending.get(part.device)
        if update is not None:  # else it came when records are missing
            self.update_bytes -= update.data.nbytes
            self._pending[part.device] = replace(update, data=Payload(update.data.id, 0))
        if not self._sum_bytes:
            self._sum_bytes = 2 * self.model_bytes
            self.update_bytes += self._sum_bytes

    def _job_done(self, event: JobDone) -> None:
        job = event.job
        match job:
            case ServerStep():
                self.step_bytes = 0
            case Merge():
                self.version += bool(merged_parts(event))
                if isinstance(job, RobustMerge):
                    for number in refusals(event.text):
                        self._take_back(job, number)
                self.model_bytes = event.result.nbytes or self.model_bytes
                self.update_bytes -= sum(u.data.nbytes for u in self.merging.values())
                self.update_bytes -= self._sum_bytes
                self._sum_bytes = 0
                self.merging.clear()
            case CloseCopy():
                self.copies.pop(job.device, None)
            case PlanRun():
                self.running = True
                plan = recorded_plan(event.text)
                own = plan is not None and plan.cuts  # a model of its own for each device
                self.model_bytes = plan.kept_bytes if plan and own else event.result.nbytes
                self.side_bytes = plan.server_bytes if plan else 0

    def _answered(self, device: NodeId) -> None:
        """Who gets a model while its update is neither merged nor refused is in a buffer."""
        update = self._pending.pop(device, None)
        if update is not None:
            self._accepted[update.data.id] = update
            self._accept(device, update)

    def _refuse(self, device: NodeId) -> None:
        update = self._pending.pop(device, None)
        if update is None:  # it came when records are missing
            return
        self.update_bytes -= update.data.nbytes
        self.refused_samples += update.trained
        self._decided += update.processed

    def _accept(self, device: NodeId, update: ModelUpdate) -> None:
        self._decided += update.processed
        counted = self._counted.pop(device, 1.0)
        self.epochs += self._shares.epochs(device, update.processed) * counted

    def _take_back(self, merge: RobustMerge, number: int) -> None:
        update = self.merging.get(merge.parts[number].data.id)
        self.refused_samples += update.trained if update else 0
        self.epochs -= merge.epochs[number]


def _taken(effects: Sequence[Effect]) -> bool:
    return not any(isinstance(e, Note) and e.kind in _NOT_TAKEN for e in effects)
