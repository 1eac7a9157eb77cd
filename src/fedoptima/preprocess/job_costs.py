"""What a job costs: the FLOPs of its part of the plan, on a device or on the server.

FLOPs are those of products and convolutions, forward and backward (`preprocess.work`);
element-wise work is in a node's sustained speed. Start-up is not part of a run and
costs nothing here.
"""

from __future__ import annotations

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
from fedoptima.core.plan import Plan


class JobCosts:
    """The plan's FLOPs per sample, summed once."""

    def __init__(self, plan: Plan) -> None:
        self._device_forward = sum(b.forward_flops for b in plan.device_blocks)
        self._device_backward = sum(b.backward_flops for b in plan.device_blocks)
        self._server_both = sum(b.forward_flops + b.backward_flops for b in plan.server_blocks)
        extra = plan.auxiliary_profile
        self._auxiliary_both = extra.forward_flops + extra.backward_flops if extra else 0.0
        self._device_parameters = sum(b.parameters for b in plan.device_blocks)
        if extra:
            self._device_parameters += extra.parameters
        self._server_parameters = sum(b.parameters for b in plan.server_blocks)

    def flops(self, job: Job, batch: int) -> float:
        """``batch``: samples in the whole mini-batch the job, or a part of it, works on."""
        match job:
            case Forward(parts=parts):
                return self._device_forward * batch / parts
            case AuxiliaryStep():
                return (self._auxiliary_both + self._device_backward) * batch
            case FullStep():
                return (self._device_forward + self._device_backward) * batch
            case Backward(parts=parts):
                return self._device_backward * batch / parts
            case ServerStep(parts=parts):
                return self._server_both * batch / parts
            case Merge(parts=updates):
                return 2.0 * self._device_parameters * (len(updates) + 1)
            case LoadModel() | ExportModel():
                return float(self._device_parameters)
            case OpenCopy():
                return float(self._server_parameters)
            case CloseCopy() | PlanRun() | Prepare():
                return 0.0
