"""Which training counts: samples that went through the whole network, and that were used.

A device that trains the whole network, or gets its gradients from the server: a sample is used when
the update it was trained for is accepted (merged, or taken into a buffer). Accepted means that both
sides have seen it, because a device goes on only with the server's gradient.

A device with a loss of its own trains its side on every sample, and the server sees some of them:
used are those that the server has trained on. The server side is one for all devices, so nothing of
that is thrown away later.

Wasted are samples that devices trained on in vain: their update was refused, or was lost with the
device or its round. What is neither used nor wasted yet is under way.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fedoptima.analysis.balance import BalanceAccount
from fedoptima.core.effects import Effect, Note, NoteKind, Run, Send
from fedoptima.core.events import JobDone, JobFailed, Received
from fedoptima.core.jobs import Merge, ReusedStep, ServerStep
from fedoptima.core.messages import Assignment, GlobalModel, Join, ModelUpdate
from fedoptima.core.robust import merged_parts
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.trace.record import Record


@dataclass(frozen=True, slots=True)
class Work:
    """In samples."""

    used: int  # through the whole network, and in the global model
    wasted: int  # trained on by devices, in vain
    under_way: int  # trained on by devices, for an update that is not decided on yet
    useful: float  # used, and of what is under way the part that was used so far


class WorkAccount:
    """Feed it the server's records, in order, after ``balance`` has seen them and the devices'."""

    def __init__(self, balance: BalanceAccount) -> None:
        self._balance = balance
        self._local_loss = False
        self._on_server = 0  # samples
        self._accepted = 0
        self._wasted = 0
        self._decided: defaultdict[NodeId, int] = defaultdict(int)  # accepted or wasted
        self._handed_in: dict[NodeId, ModelUpdate] = {}  # and not decided on
        self._merging: dict[PayloadId, tuple[NodeId, ModelUpdate]] = {}
        # Handed in by devices that have come back without them. The next merge has them, unless
        # the device is sent a model before it: then it trains that round again.
        self._left_behind: dict[PayloadId, tuple[NodeId, ModelUpdate]] = {}

    def observe(self, record: Record) -> None:
        event = record.event
        match event:
            case JobDone():
                if isinstance(event.job, ReusedStep):
                    pass  # the sample was counted when it was used first
                elif isinstance(event.job, ServerStep):
                    self._on_server += event.samples
                elif isinstance(event.job, Merge):
                    self._merged({part.data.id for part in merged_parts(event)})
            case JobFailed():
                if isinstance(event.job, Merge):
                    self._merged(set())
            case Received():
                if isinstance(event.message, ModelUpdate):
                    self._handed_in[event.sender] = event.message.without_tensors()
                elif isinstance(event.message, Join) and not event.message.has_work:
                    self._start_afresh(event.sender)
        for effect in record.effects:
            self._ordered(effect)

    def _ordered(self, effect: Effect) -> None:
        match effect:
            case Run():
                if isinstance(effect.job, Merge):
                    self._begin(effect.job)
            case Send():
                if isinstance(effect.message, GlobalModel):
                    self._answered(effect.to)
                elif isinstance(effect.message, Assignment):
                    self._local_loss = effect.message.program.kind == "auxiliary"
            case Note():
                if effect.kind == NoteKind.UPDATE_REFUSED:
                    update = self._handed_in.pop(effect.about, None)
                    self._waste(effect.about, update.trained if update else 0)

    # ---- what becomes of an update -----------------------------------------------------------

    def _begin(self, merge: Merge) -> None:
        for part in merge.parts:
            update = self._handed_in.get(part.device)
            if update is not None and update.data.id == part.data.id:
                self._merging[part.data.id] = (part.device, self._handed_in.pop(part.device))
            elif part.data.id in self._left_behind:
                self._merging[part.data.id] = self._left_behind.pop(part.data.id)

    def _merged(self, taken: set[PayloadId]) -> None:
        for name, (device, update) in self._merging.items():
            if name in taken:
                self._accept(device, update.trained)
            else:
                self._waste(device, update.trained)
        for device, update in self._left_behind.values():
            self._waste(device, update.trained)
        self._merging.clear()
        self._left_behind.clear()

    def _answered(self, device: NodeId) -> None:
        """Who gets a model while its update is neither merged nor refused: it is in a buffer."""
        for name in [n for n, (owner, _) in self._left_behind.items() if owner == device]:
            self._waste(device, self._left_behind.pop(name)[1].trained)
        update = self._handed_in.pop(device, None)
        if update is not None:
            self._accept(device, update.trained)

    def _start_afresh(self, device: NodeId) -> None:
        """A device has joined without the work it had: it was restarted, or gave up its round."""
        held = self._handed_in.pop(device, None)
        if held is not None:
            self._left_behind[held.data.id] = (device, held)
        at_server = sum(
            update.trained
            for owner, update in (*self._merging.values(), *self._left_behind.values())
            if owner == device
        )
        self._waste(device, self._open(device) - at_server)

    def _open(self, device: NodeId) -> int:
        return self._balance.trained_by(device) - self._decided[device]

    def _accept(self, device: NodeId, samples: int) -> None:
        self._accepted += samples
        self._decided[device] += samples

    def _waste(self, device: NodeId, samples: int) -> None:
        samples = max(0, samples)  # below 0 where devices' own records are not there
        self._wasted += samples
        self._decided[device] += samples

    # ---- figures -----------------------------------------------------------------------------

    def work(self) -> Work:
        """As of the last record."""
        under_way = sum(max(0, self._open(device)) for device in self._balance.known)
        if self._local_loss:
            return Work(self._on_server, self._wasted, under_way, float(self._on_server))
        decided = self._accepted + self._wasted
        share = self._accepted / decided if decided else 0.0
        return Work(self._accepted, self._wasted, under_way, self._accepted + share * under_way)
