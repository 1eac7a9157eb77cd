"""Every device as it is at this moment: what it does, since when, and what it has contributed.

Facts come from two sides, the server's records at once and a device's own about a second late. The
later fact holds, by its time on the run's clock. Nothing is required: an observer may come in the
middle of a run.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum

from fedoptima.core.effects import PROBLEMS, Effect, Note, Run, Send
from fedoptima.core.events import (
    Connected,
    Disconnected,
    DiskFailing,
    DiskWorks,
    Evaluated,
    FailedLate,
    Gap,
    JobDone,
    JobFailed,
    Received,
)
from fedoptima.core.jobs import (
    ExportModel,
    LoadModel,
    Merge,
    PlanRun,
    Prepare,
    ReusedStep,
    ServerStep,
)
from fedoptima.core.messages import Failed, GlobalModel, Join, Message, ModelUpdate
from fedoptima.core.robust import merged_parts
from fedoptima.core.stopping import ACCURACY, LOSS
from fedoptima.core.text import cut
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.gap import core_after
from fedoptima.trace.record import Record


class DeviceState(Enum):
    READYING = "getting ready"  # reads its data, measures its speed
    WAITING = "waiting"  # for the others, or for the merged model
    LOADING = "loading"  # the model it was sent
    TRAINING = "training"
    SENDING = "sending"  # its update is on the way
    AWAY = "away"
    FAILED = "failed"


class DeviceFacts:
    def __init__(self) -> None:
        self.state = DeviceState.READYING
        self.since = 0.0  # when this state began
        self.heard = 0.0  # when it was last heard of
        self.join: Join | None = None  # its last
        self.version: int | None = None  # of the model it was given last (t_k)
        self.batches = 0  # of activations that the server has trained on
        self.merged = 0  # updates
        self.error = ""  # what went wrong with it last
        self._fact = 0.0  # when the latest fact was one

    @property
    def here(self) -> bool:
        return self.state not in (DeviceState.AWAY, DeviceState.FAILED)

    def become(self, state: DeviceState, at: float) -> None:
        if at < self._fact:
            return
        self._fact = at
        if state is not self.state:
            self.state, self.since = state, at


class FleetAccount:
    """Feed it each node's records in order; how the nodes' are interleaved does not matter."""

    def __init__(self) -> None:
        self.devices: defaultdict[NodeId, DeviceFacts] = defaultdict(DeviceFacts)
        self.planning = False  # enough devices are here
        self.began: float | None = None  # the training: when there was a plan
        self.version = 0  # t
        self.batches = 0  # that the server has trained on
        self.reused = 0  # batches that it has trained on again
        self.measured: dict[str, list[float]] = {ACCURACY: [], LOSS: []}  # one per evaluation
        self.failing: dict[NodeId, str] = {}  # nodes that cannot write, and why

    def observe(self, record: Record) -> None:
        match record.event:
            case DiskFailing(error):
                self.failing[record.node] = error
            case DiskWorks():
                self.failing.pop(record.node, None)
            case Gap() as gap:
                core = core_after(gap)
                self.version = core.version if core else self.version
        if record.node == SERVER:
            self._server(record)
        else:
            self._device(self.devices[record.node], record)

    # ---- as the server sees it ---------------------------------------------------------------

    def _server(self, record: Record) -> None:
        at = record.at
        match record.event:
            case Connected(device):
                self._heard(device, at).become(DeviceState.READYING, at)
            case Disconnected(device):
                facts = self.devices[device]
                if facts.state is not DeviceState.FAILED:
                    facts.become(DeviceState.AWAY, at)
            case Received(device, _, message):
                self._received(self._heard(device, at), message, at)
            case JobDone() as done:
                self._job_done(done, at)
            case Evaluated(_, metrics):
                for name, value in metrics:
                    if name in self.measured:
                        self.measured[name].append(value)
        for effect in record.effects:
            self._effect(effect, at)

    def _heard(self, device: NodeId, at: float) -> DeviceFacts:
        facts = self.devices[device]
        facts.heard = max(facts.heard, at)
        return facts

    def _received(self, facts: DeviceFacts, message: Message, at: float) -> None:
        match message:
            case Join():
                facts.join, facts.error = message, ""
                facts.become(DeviceState.TRAINING if message.training else DeviceState.WAITING, at)
            case ModelUpdate():
                facts.become(DeviceState.WAITING, at)
            case Failed():
                facts.become(DeviceState.FAILED, at)

    def _job_done(self, event: JobDone, at: float) -> None:
        job = event.job
        match job:
            case PlanRun():
                self.began = at
            case ReusedStep():
                self.reused += 1
            case ServerStep() if job.part + 1 == job.parts:
                self.batches += 1
                self.devices[job.origin].batches += 1
            case Merge():
                merged = merged_parts(event)
                self.version += bool(merged)
                for part in merged:
                    self.devices[part.device].merged += 1

    def _effect(self, effect: Effect, at: float) -> None:
        match effect:
            case Send(device, _, GlobalModel(version=version)):
                facts = self.devices[device]
                facts.version = version
                facts.become(DeviceState.TRAINING, at)  # until it says more exactly
            case Note(kind, device, text) if kind in PROBLEMS:
                self.devices[device].error = cut(text or kind)
            case Run(_, PlanRun()):
                self.planning = True

    # ---- as the device says it ---------------------------------------------------------------

    def _device(self, facts: DeviceFacts, record: Record) -> None:
        facts.heard = max(facts.heard, record.at)
        if isinstance(record.event, JobFailed | FailedLate):
            facts.become(DeviceState.FAILED, record.at)
            facts.error = cut(record.event.error)
        for effect in record.effects:
            match effect:
                case Run(_, Prepare() | LoadModel()):
                    facts.become(DeviceState.LOADING, record.at)
                case Run(_, ExportModel()) | Send(_, _, ModelUpdate()):
                    facts.become(DeviceState.SENDING, record.at)
                case Run():
                    facts.become(DeviceState.TRAINING, record.at)
