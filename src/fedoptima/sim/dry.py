"""Engines without tensors: the same sizes and counts, no maths. For timing, and for any fleet size.

A dry run produces the same trace as a real one except for the results of evaluations; a test
checks that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import Metrics
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    CutModel,
    ExportModel,
    Forward,
    FullStep,
    Job,
    Merge,
    PlanRun,
    Prepare,
    ServerStep,
    SkipStep,
)
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import Message, ModelUpdate
from fedoptima.core.plan import Plan
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.preprocess.split import DeviceSpeed

if TYPE_CHECKING:  # a dry run may do without torch
    from torch import Tensor

LABEL_BYTES = 8  # of a class number
_SHARE_BYTES = 4


class Sizes:
    """What crosses the wire, in bytes."""

    def __init__(self, plan: Plan) -> None:
        extra = plan.auxiliary_profile
        self.model = sum(b.parameter_bytes for b in plan.device_blocks)
        self.model += extra.parameter_bytes if extra else 0
        self.update = sum(b.uploaded_bytes for b in plan.device_blocks)
        self.update += extra.uploaded_bytes if extra else 0
        last = plan.device_blocks[-1]
        self.activation = last.output_bytes
        self.gradient = last.gradient_bytes


class Planner(Protocol):
    def plan(self, devices: list[DeviceSpeed]) -> Plan: ...


class DryServerEngine:
    """Plans for real, then only counts."""

    def __init__(
        self, planner: Planner, batches: Mapping[NodeId, int], label_bytes: int = LABEL_BYTES
    ) -> None:
        """``label_bytes``: of a sample."""
        self.label_bytes = label_bytes
        self._planner = planner
        self._batches = batches
        self.plan: Plan | None = None
        self._sizes: Sizes | None = None
        self._own: dict[int, Sizes] = {}  # of devices with cuts of their own

    @property
    def sizes(self) -> Sizes:
        assert self._sizes is not None
        return self._sizes

    def sizes_at(self, cut: int) -> Sizes:
        """Of a device with this cut of its own; 0: of all."""
        if not cut:
            return self.sizes
        if cut not in self._own:
            assert self.plan is not None
            self._own[cut] = Sizes(self.plan.at(cut))
        return self._own[cut]

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        match job:  # the most frequent first
            case ServerStep():
                samples = part_size(self._batches[job.origin], job.part, job.parts)
                gradient = self.sizes.gradient * samples if job.return_gradient else 0
                return Outcome(Payload(result, gradient), samples)
            case PlanRun(devices):
                speeds = [DeviceSpeed(d.flops_per_second, d.bytes_per_second) for d in devices]
                plan = self._planner.plan(speeds)
                self._adopt(plan)
                return Outcome(
                    Payload(result, 0 if plan.cuts else self.sizes.model),
                    text=plan.to_json(),
                    micro_batches=plan.micro_batches,
                )
            case CutModel(cut=cut):
                return Outcome(Payload(result, self.sizes_at(cut).model))
            case Merge():
                return Outcome(Payload(result, 0 if self._has_cuts else self.sizes.model))
        return Outcome(Payload(result, 0))

    def evaluate(self) -> Metrics:
        return ()

    def export(self) -> dict[str, Tensor]:
        """There are no weights."""
        return {}

    def save(self) -> tuple[dict[str, object], dict[str, Tensor]]:
        return {"plan": self.plan.to_json() if self.plan else ""}, {}

    def restore(self, state: Mapping[str, object], tensors: dict[str, Tensor]) -> None:
        if state["plan"]:
            self._adopt(Plan.from_json(str(state["plan"])))

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        self._sizes = Sizes(plan)
        self._own.clear()

    @property
    def _has_cuts(self) -> bool:
        return self.plan is not None and bool(self.plan.cuts)


class DryDeviceEngine:
    def __init__(self, server: DryServerEngine, batch: int) -> None:
        self._server = server
        self._batch = batch
        self._cut = 0  # its own, if devices have some

    @property
    def _sizes(self) -> Sizes:
        return self._server.sizes_at(self._cut)

    def save(self) -> tuple[dict[str, object], dict[str, Tensor]]:
        return {"cut": self._cut} if self._cut else {}, {}

    def restore(self, state: Mapping[str, object], tensors: dict[str, Tensor]) -> None:
        self._cut = int(str(state.get("cut", 0)))

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        match job:  # the most frequent first
            case AuxiliaryStep() | FullStep() | SkipStep():
                return Outcome(Payload(result, 0), self._batch)
            case Forward():
                samples = part_size(self._batch, job.part, job.parts)
                nbytes = (self._sizes.activation + self._server.label_bytes) * samples
                return Outcome(Payload(result, nbytes + (_SHARE_BYTES if job.parts > 1 else 0)))
            case Backward():
                return Outcome(Payload(result, 0), part_size(self._batch, job.part, job.parts))
            case ExportModel():
                return Outcome(Payload(result, self._sizes.update))
            case Prepare(plan) if self._server.plan and self._server.plan.cuts:
                self._cut = Plan.from_json(plan).split
        return Outcome(Payload(result, 0))


class Dry:
    """The executor of a run without tensors: there are no values to wait for, or to check."""

    def __init__(self, server: DryServerEngine, devices: Mapping[NodeId, DryDeviceEngine]) -> None:
        self._server = server
        self._devices = devices

    def execute(self, node: NodeId, job: Job, result: PayloadId) -> Outcome:
        engine = self._server if node == SERVER else self._devices[node]
        return engine.execute(job, result)

    def reset(self, device: NodeId) -> None: ...

    def inspect(self, device: NodeId, update: ModelUpdate) -> None: ...

    def admit(self, message: Message) -> None: ...

    def faults(self) -> Mapping[NodeId, ProtocolViolation]:
        return {}

    def evaluate(self) -> Metrics:
        return self._server.evaluate()

    def settle(self) -> None: ...

    def close(self) -> None: ...


def part_size(whole: int, part: int, parts: int) -> int:
    """How many samples `torch.tensor_split` gives to a part."""
    return whole // parts + (part < whole % parts)
