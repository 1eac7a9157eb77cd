"""The global model, its version, and which devices get it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from fedoptima.core.effects import Effect
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.jobs import CloseCopy, CutModel, OpenCopy
from fedoptima.core.membership import Roster
from fedoptima.core.messages import GlobalModel
from fedoptima.core.model_age import ModelAge
from fedoptima.core.types import NodeId, Payload


class Distribution:
    has_cuts = False  # here, because checkpoints of earlier versions do not have it

    def __init__(self, *, copy_per_device: bool, remember: bool = False) -> None:
        """``remember``: keep the model that each device was sent last."""
        self.has_cuts = False  # devices have cuts of their own: each is sent a model of its own
        self._copy_per_device = copy_per_device
        self._remember = remember
        self._sent: dict[NodeId, tuple[int, Payload]] = {}
        self._model: Payload | None = None
        # To be run before anything else.
        self._copies: deque[OpenCopy | CloseCopy | CutModel] = deque()
        self._merging: tuple[NodeId, ...] = ()  # devices that get the result of the running merge
        self._merging_size = 1.0
        self.version = 0  # t
        self.age = ModelAge()

    def begin(self, model: Payload) -> None:
        self._model = model

    def merging(self, devices: tuple[NodeId, ...], size: float) -> None:
        """``size``: of what is merged, in mean shares."""
        self._merging = devices
        self._merging_size = size

    def merged(self, model: Payload, *, changed: bool = True) -> tuple[NodeId, ...]:
        """A new version if the model has changed; returns the devices that get it."""
        if changed:
            self._model = model
            self.version += 1
            self.age.merged(self._merging_size)
        devices, self._merging = self._merging, ()
        return devices

    def answer(self, devices: Iterable[NodeId], roster: Roster, share: float) -> list[Effect]:
        """Send the global model; for a device with a copy on the server both sides are replaced."""
        if not self._copy_per_device:
            # A device that left and is back during the merge gets the result of that merge.
            return self.send([d for d in devices if d not in self._merging], roster, share)
        sessions = roster.sessions
        self._copies.extend(OpenCopy(d, sessions[d]) for d in devices if d in sessions)
        return []

    def send(
        self,
        devices: Iterable[NodeId],
        roster: Roster,
        share: float,
        model: Payload | None = None,
    ) -> list[Effect]:
        """``share`` of the budget is spent. ``model``: of these devices alone, if it is ready."""
        if self.has_cuts and model is None:
            members = ((device, roster.members.get(device)) for device in devices)
            found = [(d, m) for d, m in members if m is not None and not m.reassigned]
            self._copies.extend(CutModel(d, m.session, m.cut) for d, m in found)
            return []
        model = model or self._model
        if model is None:
            raise InvariantBroken("a model is to be sent before there is one")
        effects: list[Effect] = []
        for device in devices:
            member = roster.members.get(device)
            # It may have left, or have come back in the meantime and received a model already; or,
            # after a restart of the server, have handed in again, and then that is answered.
            if member is None or not member.awaits_model or member.update is not None:
                continue
            member.awaits_model, member.owes_update = False, True
            self.age.sent(device, self.version)
            effects.append(roster.send(device, GlobalModel(self.version, share, model)))
            if self._remember:
                self._sent[device] = (self.version, model)
        return effects

    @property
    def merging_size(self) -> float:
        return self._merging_size

    @property
    def remembers(self) -> bool:
        return self._remember

    def base_of(self, device: NodeId, version: int) -> Payload | None:
        """The model of that version, if it is what the device was sent last."""
        sent = self._sent.get(device)
        return sent[1] if sent is not None and sent[0] == version else None

    def forget_bases(self, members: Collection[NodeId], max_delay: int) -> None:
        """Of devices that have been away for so many merges that nothing of theirs is merged."""
        if len(self._sent) > len(members):
            self._sent = {
                device: sent
                for device, sent in self._sent.items()
                if device in members or self.age.away(device) <= max_delay
            }

    def left(self, device: NodeId, *, keep_copy: bool = False) -> None:
        """``keep_copy``: an update of the device is yet to be merged, together with its copy."""
        self.age.left(device)
        if self._copy_per_device and not keep_copy:
            self._copies.append(CloseCopy(device))

    def close_copies(self, devices: Iterable[NodeId], roster: Roster) -> None:
        """Of devices that had left before they were merged."""
        if self._copy_per_device:
            self._copies.extend(CloseCopy(d) for d in devices if d not in roster.members)

    def next_copy(self, roster: Roster) -> OpenCopy | CloseCopy | CutModel | None:
        """The next server-side copy to open or close, or model to put together."""
        while self._copies:
            job = self._copies.popleft()
            if isinstance(job, CloseCopy) or roster.is_current(job.device, job.session):
                return job
        return None

    @property
    def copies_due(self) -> bool:
        return bool(self._copies)
