"""What each device contributed: batches the server used, weight in the merges, samples trained.

Balance is Jain's index, ``(sum x)^2 / (n sum x^2)`` over all devices that ever joined: 1 when all
contribute alike, 1/n when one does everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedoptima.core.effects import Note, NoteKind
from fedoptima.core.events import JobDone, Received
from fedoptima.core.jobs import Merge, ReusedStep, ServerStep, SkipStep
from fedoptima.core.messages import Join, ModelUpdate
from fedoptima.core.robust import merged_parts
from fedoptima.core.shares import Shares
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record


@dataclass(frozen=True, slots=True)
class Contribution:
    batches: int  # activation batches the server has trained on, whole ones
    late_batches: int  # that came after their credit had expired, and were dropped
    server_samples: int  # trained on by the server, from this device
    device_samples: int  # trained on by the device
    updates: int  # merged
    merge_weight: float  # sum over all merges
    merge_share: float  # of all devices' weight
    data_share: float = 0.0  # of the samples that all devices hold, as far as they are believed
    handed_in: int = 0  # updates, merged or not
    forwarded_samples: int = 0  # sent by the device without training on them
    reused_batches: int = 0  # that the server trained on again, as often as it did
    reused_samples: int = 0


@dataclass(frozen=True, slots=True)
class Balance:
    devices: Mapping[NodeId, Contribution]
    batches_jain: float | None  # None: the server used none
    merge_weight_jain: float | None  # None: nothing was merged

    @property
    def late_batches(self) -> int:
        return sum(device.late_batches for device in self.devices.values())


class ContributionTally:
    def __init__(self) -> None:
        self.batches = 0
        self.late = 0
        self.server_samples = 0
        self.device_samples = 0
        self.updates = 0
        self.weight = 0.0
        self.handed_in = 0
        self.forwarded = 0
        self.reused_batches = 0
        self.reused_samples = 0


class BalanceAccount:
    """Feed it every record, in order."""

    def __init__(self) -> None:
        self._devices: defaultdict[NodeId, ContributionTally] = defaultdict(ContributionTally)
        self._shares = Shares()  # of every device that ever joined

    def observe(self, record: Record) -> None:
        event = record.event
        if isinstance(event, JobDone):
            self._job_done(record.node, event)
        if record.node != SERVER:
            return
        if isinstance(event, Received):
            if isinstance(event.message, Join):
                self._devices[event.sender]
                if not any(
                    isinstance(e, Note) and e.kind == NoteKind.PEER_DROPPED for e in record.effects
                ):
                    self._shares.add(event.sender, event.message.samples)
            elif isinstance(event.message, ModelUpdate):
                self._devices[event.sender].handed_in += 1
        for effect in record.effects:
            if isinstance(effect, Note) and effect.kind == NoteKind.LATE_BATCH_DROPPED:
                self._devices[effect.about].late += 1

    def _job_done(self, node: NodeId, event: JobDone) -> None:
        job = event.job
        if node != SERVER:
            if event.samples:
                tally = self._devices[node]
                if isinstance(job, SkipStep):
                    tally.forwarded += event.samples
                else:
                    tally.device_samples += event.samples
        elif isinstance(job, ReusedStep):
            tally = self._devices[job.origin]
            tally.reused_batches += 1
            tally.reused_samples += event.samples
        elif isinstance(job, ServerStep):
            tally = self._devices[job.origin]
            tally.batches += job.part + 1 == job.parts
            tally.server_samples += event.samples
        elif isinstance(job, Merge):
            for part in merged_parts(event):
                tally = self._devices[part.device]
                tally.updates += 1
                tally.weight += part.weight

    @property
    def known(self) -> tuple[NodeId, ...]:
        """Every device that joined or trained."""
        return tuple(self._devices)

    def trained_by(self, device: NodeId) -> int:
        """Samples."""
        tally = self._devices.get(device)
        return tally.device_samples if tally else 0

    def balance(self) -> Balance:
        tallies = self._devices.values()
        weight = sum(tally.weight for tally in tallies)
        devices = {
            device: Contribution(
                tally.batches,
                tally.late,
                tally.server_samples,
                tally.device_samples,
                tally.updates,
                tally.weight,
                tally.weight / weight if weight else 0.0,
                self._shares.portion(device),
                tally.handed_in,
                tally.forwarded,
                tally.reused_batches,
                tally.reused_samples,
            )
            for device, tally in sorted(self._devices.items())
        }
        return Balance(
            devices,
            jain([tally.batches for tally in tallies]),
            jain([tally.weight for tally in tallies]),
        )


def jain(shares: Sequence[float]) -> float | None:
    """Jain, Chiu and Hawe 1984; None where no device has anything."""
    most = max(shares, default=0.0)
    if most <= 0:
        return None
    # Scaled first, so that tiny shares cannot vanish when squared.
    scaled = [share / most for share in shares]
    return min(1.0, sum(scaled) ** 2 / (len(scaled) * sum(share**2 for share in scaled)))
