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
from fedoptima.core.events import Connected, Disconnected, JobDone, Received
from fedoptima.core.jobs import ExportModel, LoadModel, Merge, ServerStep
from fedoptima.core.messages import ActivationBatch, Join, ModelUpdate
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.trace.record import Record

Key = tuple[NodeId, int, PayloadId]  # device, session, what was sent


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

    def __str__(self) -> str:
        more = f" + {self.unrecorded} of killed devices" if self.unrecorded else ""
        return (
            f"{self.sent} sent{more} = {self.received} received + {self.lost} lost; "
            f"{self.received} received = {self.used} used + {self.refused} refused + "
            f"{self.left} left"
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
    problems: list[str] = field(default_factory=list)

    def take(self, record: Record) -> None:
        event = record.event
        match event:
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
                self._used(step.data.id)
            case JobDone(_, Merge() as merge):
                self.merges += 1
                for part in merge.parts:
                    self._used(part.data.id)
            case Disconnected(device):
                self.here.pop(device, None)
        for effect in record.effects:
            match effect:
                case Note(NoteKind.UPDATE_REFUSED, device):
                    self._refused(device, ModelUpdate)
                case Note(NoteKind.LATE_BATCH_DROPPED, device):
                    self._refused(device, ActivationBatch)

    def _used(self, identity: PayloadId) -> None:
        key = self.newest.get(identity)
        if key is None:
            self.problems.append(f"{identity} was used, and never received")
        elif self.fate[key] != "left":
            self.problems.append(f"{identity} was used, and is {self.fate[key]} already")
        else:
            self.fate[key] = "used"

    def _refused(self, device: NodeId, kind: type) -> None:
        waiting = [k for k in self.here.get(device, []) if self.kind[k] is kind]
        waiting = [key for key in waiting if self.fate[key] == "left"]
        if waiting:
            self.fate[waiting[-1]] = "refused"
        else:
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
    return Ledger(*sums, merged, problems)


def _compare(server: _Server, told: Mapping[str, Any]) -> list[str]:
    """With what the server's own accounts come to, which went through its checkpoints."""
    ours = {"versions": server.merges, "server_samples": server.samples}
    return [
        f"the trace has {count} {name}, the summary {told[name]}"
        for name, count in ours.items()
        if told[name] != count
    ]


def _sums(kind: type, server: _Server, devices: Mapping[str, _Device], problems: list[str]) -> Sums:
    received = {key for key, what in server.kind.items() if what is kind}
    sent = {k for d in devices.values() for k, what in d.sent.items() if what is kind}
    unrecorded = received - sent
    for device, session, identity in sorted(unrecorded):
        if session not in devices[device].killed:
            problems.append(f"{identity} was received in session {session}, and never sent")
    lost = sent - received
    for device, session, identity in sorted(lost):
        known = devices[device]
        if session not in known.ended | known.killed | {known.last}:
            problems.append(f"{identity} was sent in session {session}, and is nowhere")
    fates = Counter(server.fate[key] for key in received)
    return Sums(
        *(len(sent), len(received), len(unrecorded), len(lost)),
        *(fates["used"], fates["refused"], fates["left"]),
    )


# ---- work that was done in vain ------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """A round of a device: the update that came of it, if one did."""

    update: PayloadId | None


def rounds(records: Iterable[Record]) -> list[Round]:
    """Of a device, in order, from the first model it loaded. The last one may be unfinished."""
    found: list[Round] = []
    open_round = False
    for record in records:
        match record.event:
            case JobDone(_, LoadModel()):
                if open_round:
                    found.append(Round(None))
                open_round = True
            case JobDone(_, ExportModel(), result) if open_round:
                found.append(Round(result.id))
                open_round = False
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
