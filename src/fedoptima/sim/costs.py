"""How long a job takes on a node: its FLOPs over the node's speed, or a measured time.

FLOPs are those `torch.utils.flop_counter` counts (products and convolutions, forward and
backward); element-wise work is in the node's sustained speed. Start-up is not part of a run and
costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    CloseCopy,
    ExportModel,
    Forward,
    FullStep,
    Job,
    LoadModel,
    Merge,
    OpenCopy,
    PlanRun,
    Prepare,
    ServerStep,
)
from fedoptima.core.types import SERVER, NodeId
from fedoptima.preprocess.plan import Plan
from fedoptima.sim.fleet import NodeSpec

_NAMES: dict[type, str] = {
    Forward: "forward",
    AuxiliaryStep: "auxiliary_step",
    Backward: "backward",
    FullStep: "full_step",
    LoadModel: "load_model",
    ExportModel: "export_model",
    ServerStep: "server_step",
    Merge: "merge",
}

_PARTIAL = (Forward, Backward, ServerStep)


class PlanCosts:
    """The plan's FLOPs per sample, summed once."""

    def __init__(self, plan: Plan) -> None:
        self.device_forward = sum(b.forward_flops for b in plan.device_blocks)
        self.device_backward = sum(b.backward_flops for b in plan.device_blocks)
        self.server_both = sum(b.forward_flops + b.backward_flops for b in plan.server_blocks)
        extra = plan.auxiliary_profile
        self.auxiliary_both = extra.forward_flops + extra.backward_flops if extra else 0.0
        self.device_parameters = sum(b.parameters for b in plan.device_blocks)
        if extra:
            self.device_parameters += extra.parameters
        self.server_parameters = sum(b.parameters for b in plan.server_blocks)


class FlopCosts:
    """``plan`` is asked once, when the first job of the run itself is costed."""

    def __init__(
        self,
        plan: Callable[[], Plan],
        server: NodeSpec,
        devices: Mapping[NodeId, NodeSpec],
        batches: Mapping[NodeId, int],
    ) -> None:
        self._plan = plan
        self._nodes = {SERVER: server, **devices}
        self._batches = batches  # samples in a device's batch

    @cached_property
    def _costs(self) -> PlanCosts:
        return PlanCosts(self._plan())

    def seconds(self, node: NodeId, job: Job) -> float:
        if isinstance(job, PlanRun | Prepare):
            return 0.0
        spec = self._nodes[node]
        if spec.seconds:
            measured = spec.seconds.get(_NAMES.get(type(job), ""))
            if measured is not None:
                # Measured for a whole batch, of which this may be a part.
                return measured / job.parts if isinstance(job, _PARTIAL) else measured
        return self._flops(node, job) / spec.flops_per_second

    def _flops(self, node: NodeId, job: Job) -> float:
        costs = self._costs
        match job:
            case Forward(parts=parts):
                return costs.device_forward * self._batches[node] / parts
            case AuxiliaryStep():
                return (costs.auxiliary_both + costs.device_backward) * self._batches[node]
            case FullStep():
                return (costs.device_forward + costs.device_backward) * self._batches[node]
            case Backward(parts=parts):
                return costs.device_backward * self._batches[node] / parts
            case ServerStep(origin=origin, parts=parts):
                return costs.server_both * self._batches[origin] / parts
            case Merge(parts=updates):
                return 2.0 * costs.device_parameters * (len(updates) + 1)
            case LoadModel() | ExportModel():
                return float(costs.device_parameters)
            case OpenCopy():
                return float(costs.server_parameters)
            case CloseCopy() | PlanRun() | Prepare():
                return 0.0
