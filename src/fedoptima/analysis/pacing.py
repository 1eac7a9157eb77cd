"""How fast each device goes, from the records of a run: its rounds, and the batches it sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from fedoptima.core.effects import Send
from fedoptima.core.events import JobDone, Received
from fedoptima.core.jobs import LoadModel, Rebase, ReusedStep, ServerStep, SkipStep
from fedoptima.core.messages import ActivationBatch, TurnOn, nbytes
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record

ROUNDS, ITERATIONS = 2, 100  # of every device, until its pace is known


@dataclass(frozen=True, slots=True)
class DevicePace:
    """One device: seconds, and the rates that follow from them."""

    iteration: float  # including waits within the round
    round: float  # from one model to the next
    turnaround: float  # mean, from a turn-on to the arrival of its batch; 0 where there is none
    samples_per_second: float  # that it trains on
    batches_per_second: float  # of activations, that the server trains on
    transfer: float  # of one activation batch up the link; 0 where none is sent
    forwarded_per_second: float = 0.0  # samples that it sends without training on them
    up_per_second: float = 0.0  # bytes to the server
    down_per_second: float = 0.0  # bytes from it

    @property
    def processed_per_second(self) -> float:
        return self.samples_per_second + self.forwarded_per_second


class _Device:
    def __init__(self) -> None:
        # With each model: time, samples, of them not trained on, batches, bytes up and down.
        self.marks: list[tuple[float, int, int, int, int, int]] = []
        self.samples = self.forwarded = self.batches = self.up = self.down = 0
        self.training = 0.0  # seconds, without those between two rounds
        self.now = 0.0
        self.turned_on: float | None = None
        self.turnarounds = self.transfers = 0.0
        self.answers = self.arrived = 0
        self.in_flight: deque[float] = deque()  # since when

    def pace(self, batch: int) -> DevicePace:
        """Over whole rounds, if there are any."""
        marks = self.marks if len(self.marks) > 1 else [*self.marks, self.mark()]
        (start, *before), (end, *after) = marks[0], marks[-1]
        samples, forwarded, batches, up, down = (b - a for a, b in zip(before, after, strict=True))
        seconds = end - start or float("inf")
        return DevicePace(
            iteration=self.training * batch / max(1, self.samples),
            round=(end - start) / max(1, len(marks) - 1),
            turnaround=self.turnarounds / max(1, self.answers),
            samples_per_second=(samples - forwarded) / seconds,
            batches_per_second=batches / seconds,
            transfer=self.transfers / max(1, self.arrived),
            forwarded_per_second=forwarded / seconds,
            up_per_second=up / seconds,
            down_per_second=down / seconds,
        )

    def mark(self) -> tuple[float, int, int, int, int, int]:
        return self.now, self.samples, self.forwarded, self.batches, self.up, self.down


class PaceAccount:
    """Feed it every record, in order."""

    def __init__(self, batches: Mapping[NodeId, int]) -> None:
        self._batches = batches  # samples in each device's
        self._devices = {device: _Device() for device in batches}
        self._unsettled = set(batches)

    @property
    def settled(self) -> bool:
        """Every device has done a few rounds."""
        return not self._unsettled

    def paces(self) -> dict[NodeId, DevicePace]:
        return {name: device.pace(self._batches[name]) for name, device in self._devices.items()}

    def observe(self, record: Record) -> None:
        event, now = record.event, record.at
        if record.node == SERVER:
            if isinstance(event, Received):
                self._devices[event.sender].up += nbytes(event.message)
            if isinstance(event, Received) and isinstance(event.message, ActivationBatch):
                device = self._devices[event.sender]
                device.transfers += now - device.in_flight.popleft()
                device.arrived += event.message.part + 1 == event.message.parts
                if device.turned_on is not None:
                    device.turnarounds += now - device.turned_on
                    device.answers += 1
                    device.turned_on = None
            elif isinstance(event, JobDone) and isinstance(event.job, ServerStep):
                whole = event.job.part + 1 == event.job.parts
                fresh = not isinstance(event.job, ReusedStep)
                self._devices[event.job.origin].batches += whole and fresh
            for effect in record.effects:
                if isinstance(effect, Send):
                    self._devices[effect.to].down += nbytes(effect.message)
                    if isinstance(effect.message, TurnOn):
                        self._devices[effect.to].turned_on = now
        else:
            device = self._devices[record.node]
            if isinstance(event, JobDone):
                self._job_done(record.node, device, event, now)
            for effect in record.effects:
                if isinstance(effect, Send) and isinstance(effect.message, ActivationBatch):
                    device.in_flight.append(now)

    def _job_done(self, name: NodeId, device: _Device, event: JobDone, now: float) -> None:
        if event.samples:
            device.training += now - device.now
            device.samples += event.samples
            device.forwarded += event.samples * isinstance(event.job, SkipStep)
            device.now = now
        elif isinstance(event.job, LoadModel | Rebase):
            device.now = now
            device.marks.append(device.mark())
            enough = device.samples >= ITERATIONS * self._batches[name]
            if enough and len(device.marks) > ROUNDS:
                self._unsettled.discard(name)
