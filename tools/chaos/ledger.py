"""What was sent, received, used and merged, added up from the records of a run.

Devices and server write their records by themselves, so what one side says it sent and the other
says it received are two counts, and so are what the server's trace holds and what its summary says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedoptima.core.effects import Note, NoteKind, Send
from fedoptima.core.events import Connected, Disconnected, Gap, JobDone, Received
from fedoptima.core.jobs import ExportModel, LoadModel, Merge, ServerStep
from fedoptima.core.messages import ActivationBatch, Join, ModelUpdate
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.trace.record import Record

Key = tuple[NodeId, int, PayloadId]  # device, session, what was sent
Lane = tuple[NodeId, int, bool]  # device, session, bulk


@dataclass(frozen=True)
class Sums:
    """Of batches, or of updates."""

    sent: int
    received: int
    unrecorded: int  # received of a device that was killed before it had told that it sent them
    lost: int  # with a connection or a process that ended
    used: int  # trained on, or merged
    refused: int
    left: int  # gone with the session, or unused when the run ended
    in_gaps: int = 0  # what became of them is in records that could not be written

    def __str__(self) -> str:
        more = f" + {self.unrecorded} of killed devices" if self.unrecorded else ""
        gaps = f" + {self.in_gaps} in gaps" if self.in_gaps else ""
        return (
            f"{self.sent} sent{more} = {self.received} received + {self.lost} lost; "
            f"{self.received} received = {self.used} used + {self.refused} refused + "
            f"{self.left} left{gaps}"
        )


@dataclass
class Ledger:
    """A run's books. ``problems`` is empty where everything agrees."""

    batches: Sums
    updates: Sums
    merged: set[PayloadId]
    problems: list[str]


@dataclass
class _Device:
    """A device's own records."""

    sent: dict[Key, type] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)  # sessions whose end it has recorded
    killed: set[int] = field(default_factory=set)  # sessions that a later process has ended
    last: int = 0
    last_incarnation: int = 0

    def take(self, record: Record) -> None:
        match record.event:
            case Connected(_, session):
                joins = [m.message for m in record.effects if isinstance(m, Send)]
                incarnation = next(j.incarnation for j in joins if isinstance(j, Join))
                if self.last and self.last not in self.ended:
                    again = incarnation == self.last_incarnation
                    (self.ended if again else self.killed).add(self.last)
                self.last, self.last_incarnation = session, incarnation
            case Disconnected(_, session):
                self.ended.add(session)
        for effect in record.effects:
            if isinstance(effect, Send) and isinstance(
                effect.message, ActivationBatch | ModelUpdate
            ):
                key = (record.node, effect.session, effect.message.data.id)
                self.sent[key] = type(effect.message)


@dataclass
class _Server:
    """What the server's trace says became of everything that it received."""

    fate: dict[Key, str] = field(default_factory=dict)
    kind: dict[Key, type] = field(default_factory=dict)
    newest: dict[PayloadId, Key] = field(default_factory=dict)
    here: dict[NodeId, list[Key]] = field(default_factory=dict)  # not decided on yet
    merges: int = 0
    samples: int = 0
    gaps: int = 0
    sessions: set[tuple[NodeId, int]] = field(default_factory=set)  # whose beginning is here
    in_gaps: Counter[Lane] = field(default_factory=Counter)  # received there, by lane
    hidden: set[PayloadId] = field(default_factory=set)  # received there
    used_after: Counter[type] = field(default_factory=Counter)  # what a gap does not name
    problems: list[str] = field(default_factory=list)

    def take(self, record: Record) -> None:
        event = record.event
        match event:
            case Gap():
                self._gap(event)
            case Connected(device, session):
                self.sessions.add((device, session))
            case Received(device, session, ActivationBatch() | ModelUpdate() as message):
                key = (device, session, message.data.id)
                if key in self.fate:
                    self.problems.append(f"{key} was received twice")
                self.fate[key] = "left"
                self.kind[key] = type(message)
                self.newest[message.data.id] = key
                self.here.setdefault(device, []).append(key)
            case JobDone(_, ServerStep() as step):
                self.samples += event.samples
                self._used(step.data.id, ActivationBatch)
            case JobDone(_, Merge() as merge):
                self.merges += 1
                for part in merge.parts:
                    self._used(part.data.id, ModelUpdate)
            case Disconnected(device):
                self.here.pop(device, None)
        for effect in record.effects:
            match effect:
                case Note(NoteKind.UPDATE_REFUSED, device):
                    self._refused(device, ModelUpdate)
                case Note(NoteKind.LATE_BATCH_DROPPED, device):
                    self._refused(device, ActivationBatch)

    def _gap(self, gap: Gap) -> None:
        """Records are missing: of what was here it is not known what became of it."""
        self.gaps += 1
        for key in (key for keys in self.here.values() for key in keys):
            if self.fate[key] == "left":
                self.fate[key] = "in a gap"
        self.here.clear()
        for (device, session, upward, bulk), count in gap.mail:
            if upward:
                joined = not bulk and (device, session) not in self.sessions
                self.in_gaps[device, session, bulk] += count - joined

    def _used(self, identity: PayloadId, kind: type) -> None:
        key = self.newest.get(identity)
        if key is None and self.gaps:
            self.used_after[kind] += 1
        elif key is None:
            self.problems.append(f"{identity} was used, and never received")
        elif self.fate[key] not in ("left", "in a gap"):
            self.problems.append(f"{identity} was used, and is {self.fate[key]} already")
        else:
            self.fate[key] = "used"

    def _refused(self, device: NodeId, kind: type) -> None:
        waiting = [k for k in self.here.get(device, []) if self.kind[k] is kind]
        waiting = [key for key in waiting if self.fate[key] == "left"]
        if waiting:
            self.fate[waiting[-1]] = "refused"
        elif not self.gaps:
            self.problems.append(f"{device}: something was refused that is not here")


def add_up(trace: Iterable[Record], own: Mapping[str, Iterable[Record]], summary: Path) -> Ledger:
    """``trace``: the server's records. ``own``: each device's."""
    server, devices = _Server(), {}
    for record in trace:
        if record.node == SERVER:
            server.take(record)
    for name, records in own.items():
        devices[name] = device = _Device()
        for record in records:
            device.take(record)
    problems = [*server.problems, *_compare(server, json.loads(summary.read_text()))]
    sums = [_sums(kind, server, devices, problems) for kind in (ActivationBatch, ModelUpdate)]
    updates = [k for k, kind in server.kind.items() if kind is ModelUpdate]
    merged = {identity for *_, identity in (k for k in updates if server.fate[k] == "used")}
    return Ledger(*sums, merged | server.hidden, problems)


def _compare(server: _Server, told: Mapping[str, Any]) -> list[str]:
    """With what the server's own accounts come to, which went through its checkpoints."""
    ours = {"versions": server.merges, "server_samples": server.samples}
    return [
        f"the trace has {count} {name}, the summary {told[name]}"
        for name, count in ours.items()
        if (count > told[name] if server.gaps else count != told[name])
    ]


def _sums(kind: type, server: _Server, devices: Mapping[str, _Device], problems: list[str]) -> Sums:
    received = {key for key, what in server.kind.items() if what is kind}
    sent = [k for d in devices.values() for k, what in d.sent.items() if what is kind]
    unrecorded = received.difference(sent)
    for device, session, identity in sorted(unrecorded):
        if session not in devices[device].killed:
            problems.append(f"{identity} was received in session {session}, and never sent")
    lost, hidden = [], 0
    for key in (key for key in sent if key not in received):  # in order
        device, session, identity = key
        lane = (device, session, kind is ActivationBatch)
        known = devices[device]
        if server.in_gaps[lane] > 0:
            server.in_gaps[lane] -= 1
            server.hidden.add(identity)
            hidden += 1
            continue
        lost.append(key)
        if session not in known.ended | known.killed | {known.last}:
            problems.append(f"{identity} was sent in session {session}, and is nowhere")
    fates = Counter(server.fate[key] for key in received)
    after = server.used_after[kind]
    return Sums(
        *(len(sent), len(received) + hidden, len(unrecorded), len(lost)),
        *(fates["used"] + after, fates["refused"], fates["left"]),
        fates["in a gap"] + hidden - after,
    )


# ---- work that was done in vain ------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """A round of a device: the update that came of it, if one did."""

    update: PayloadId | None


def rounds(records: Iterable[Record]) -> list[Round]:
    """Of a device, in order, from the first model it loaded. The last one may be unfinished.

    A device that overlaps its rounds begins the next with what it hands in, and rebases it on the
    answer: `Rebase` begins none.
    """
    found: list[Round] = []
    open_round = False
    for record in records:
        match record.event:
            case JobDone(_, LoadModel()):
                if open_round:
                    found.append(Round(None))
                open_round = True
            case JobDone(_, ExportModel(keep=overlaps), result) if open_round:
                found.append(Round(result.id))
                open_round = overlaps
    return found


def lost_until(
    all_rounds: list[Round], marker: PayloadId, counted: set[PayloadId], start: int
) -> tuple[int, int]:
    """How many rounds from ``start`` up to the one that made ``marker`` count for nothing, and
    where the next ones begin."""
    ends = [i for i, one in enumerate(all_rounds) if one.update == marker and i >= start]
    if not ends:  # its record is lost with a process that was killed
        return 0, start
    passed = all_rounds[start : ends[0]]
    return sum(one.update not in counted for one in passed), ends[0] + 1
