"""Which devices take part, under which session, and what the server owes each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from fedoptima.core.effects import Effect, Note, NoteKind, Send
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.jobs import DeviceProfile
from fedoptima.core.messages import Join, ModelUpdate, ToDevice, TurnOn
from fedoptima.core.shares import LARGEST, Shares
from fedoptima.core.types import NodeId, PayloadId


class Member:
    """A device in the run, for one session."""

    cut = 0  # these are here, because checkpoints of earlier versions do not have them
    reassigned = False

    def __init__(self, session: int, join: Join) -> None:
        self.session = session
        self.join = join
        self.owes_update = False  # it has a model to train, or an update to hand in
        self.awaits_model = False  # it handed in, or is new, and waits for a model
        self.round_samples = 0  # what a round of its assignment trains on, at most
        self.update: ModelUpdate | None = None  # that waits for the engine
        self.cut = 0  # its own, where devices have some
        self.reassigned = False  # it was given another plan, and will report that it has no work


class Roster:
    """Sessions, members, and what is remembered of devices that left.

    A few numbers per device are kept: with them a rejoining device can hand in an update that
    was lost in transit, but cannot hand it in twice.
    """

    # Here, because checkpoints of earlier versions do not have it.
    _distrusted: Mapping[NodeId, int] = MappingProxyType({})

    def __init__(self) -> None:
        self.sessions: dict[NodeId, int] = {}  # connected, joined or not
        self.members: dict[NodeId, Member] = {}
        self.shares = Shares()
        self._known: dict[NodeId, None] = {}  # ever joined
        self._settled: dict[NodeId, PayloadId] = {}
        self._distrusted = {}  # the last session whose data must not be used again

    def add(self, device: NodeId, join: Join) -> Member:
        member = self.members[device] = Member(self.sessions[device], join)
        self.shares.add(device, join.samples)
        self._known[device] = None
        return member

    def profiles(self) -> dict[NodeId, DeviceProfile]:
        """What the members say of themselves, in the order of their names."""
        return {
            d: DeviceProfile(d, m.join.samples, m.join.flops_per_second, m.join.bytes_per_second)
            for d, m in sorted(self.members.items())
        }

    def doubts(self, device: NodeId) -> list[Effect]:
        """What the device claims to hold, if not all of it counts."""
        claimed, counted = self.shares.claimed(device), self.shares.counted(device)
        if counted == claimed:
            return []
        text = f"of {claimed} samples {counted} count, {LARGEST} times the fleet's median"
        return [Note(NoteKind.SHARE_CAPPED, device, text)]

    def remove(self, device: NodeId) -> Member | None:
        """The device has left; returns its member entry if it had joined."""
        del self.sessions[device]
        self.shares.remove(device)
        return self.members.pop(device, None)

    @property
    def known(self) -> int:
        """How many devices have ever joined."""
        return len(self._known)

    def is_current(self, device: NodeId, session: int) -> bool:
        return self.sessions.get(device) == session

    def distrust(self, device: NodeId) -> None:
        if device in self.sessions:
            self._distrusted = {**self._distrusted, device: self.sessions[device]}

    def distrusts(self, device: NodeId, session: int) -> bool:
        return self._distrusted.get(device, -1) >= session

    def send(self, device: NodeId, message: ToDevice) -> Send:
        return Send(device, self.sessions[device], message)

    def turn_on(self, devices: Collection[NodeId]) -> list[Effect]:
        return [self.send(device, TurnOn()) for device in devices] if devices else []

    def settle(self, device: NodeId, update: PayloadId) -> None:
        self._settled[device] = update

    def has_settled(self, device: NodeId, update: PayloadId) -> bool:
        return self._settled.get(device) == update

    def check(self) -> None:
        for device, member in self.members.items():
            if self.sessions.get(device) != member.session:
                raise InvariantBroken(f"{device} is a member of a session that is over")
            if member.owes_update and member.awaits_model:
                raise InvariantBroken(f"{device} owes an update and is owed a model")
        self.shares.check()
