"""What a job costs: the FLOPs of its part of the plan, and the bytes that it moves in memory.

FLOPs are those of products and convolutions, forward and backward (`preprocess.work`). Bytes are
what all operations read and write, element-wise ones above all, and what optimiser steps, merges
and copies do; a node pays for them if its fleet says at which speed, else they are in its sustained
speed. Start-up is not part of a run and costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedoptima.core.codecs import Codec
from fedoptima.core.jobs import (
    AddUp,
    AuxiliaryStep,
    Backward,
    CloseCopy,
    CutModel,
    ExportModel,
    Forward,
    FullStep,
    Job,
    LoadModel,
    Merge,
    OpenCopy,
    PlanRun,
    Prepare,
    Rebase,
    ServerStep,
    SkipStep,
)
from fedoptima.core.plan import BlockProfile, Plan


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a node works."""

    flops_per_second: float
    memory: float | None = None  # bytes per second; None: not charged
    overhead: float = 0.0  # seconds of every job


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Bytes that a pass over some blocks moves."""

    sample: int = 0
    batch: int = 0

    def of(self, samples: float) -> float:
        return self.sample * samples + self.batch

    def __add__(self, other: _Traffic) -> _Traffic:
        return _Traffic(self.sample + other.sample, self.batch + other.batch)


def _forward(blocks: Iterable[BlockProfile]) -> _Traffic:
    """Weights are read."""
    return sum((_Traffic(b.forward_moved, b.parameter_bytes) for b in blocks), _Traffic())


def _backward(blocks: Iterable[BlockProfile]) -> _Traffic:
    """Weights are read, and their gradients written."""
    return sum((_Traffic(b.backward_moved, 2 * b.parameter_bytes) for b in blocks), _Traffic())


def _step(model: int, state: int) -> _Traffic:
    """Gradients are read; weights and the optimiser's state are read and written."""
    return _Traffic(0, (3 + 2 * state) * model)


# Bytes that a number costs where it is coded and where it is decoded (`engine.codecs`).
ENCODING: dict[Codec, int] = {"float32": 0, "bfloat16": 6, "int8": 37}
DECODING: dict[Codec, int] = {"float32": 0, "bfloat16": 6, "int8": 13}
_CHANGE = 12  # of a weight: two numbers are read, their difference or sum is written


class JobCosts:
    """The plan's FLOPs and bytes per sample, summed once."""

    def __init__(
        self, plan: Plan, *, copies: bool = False, device_state: int = 0, server_state: int = 0
    ) -> None:
        """``copies``: every device has a server side of its own, so that these are merged, too.

        ``device_state``, ``server_state``: tensors that an optimiser keeps for each weight.
        """
        self._device_forward = sum(b.forward_flops for b in plan.device_blocks)
        self._device_backward = sum(b.backward_flops for b in plan.device_blocks)
        self._server_both = plan.server_flops(answered=True)
        self._server_alone = plan.server_flops(answered=False)
        extra = plan.auxiliary_profile
        self._auxiliary_both = extra.forward_flops + extra.backward_flops if extra else 0.0
        self._device_parameters = sum(b.parameters for b in plan.device_blocks)
        if extra:
            self._device_parameters += extra.parameters
        self._server_parameters = sum(b.parameters for b in plan.server_blocks)

        device, auxiliary = plan.device_blocks, (extra,) if extra else ()
        self._model: int = sum(b.parameter_bytes for b in (*device, *auxiliary))
        self._server = plan.server_bytes
        self._copies = copies
        own_step, server_step = _step(self._model, device_state), _step(self._server, server_state)
        self._forward = _forward(device)
        self._backward = _backward(device)
        self._backward_step = self._backward + own_step
        self._auxiliary = _forward(auxiliary) + _backward(auxiliary) + self._backward_step
        self._full = self._forward + self._backward_step
        self._server_pass = _forward(plan.server_blocks) + _backward(plan.server_blocks)
        self._entry = sum(b.entry_moved for b in plan.server_blocks[:1])  # a sample's bytes
        self._server_step = self._server_pass + server_step
        self._add_codecs(plan)

    def _add_codecs(self, plan: Plan) -> None:
        extra, codecs = plan.auxiliary_profile, plan.codecs
        cut = sum(numbers for _, numbers in plan.device_blocks[-1].cut_rows)
        own = (*plan.device_blocks, *((extra,) if extra else ()))
        weights: int = sum(block.weight_rows[0] for block in own if block.weight_rows)
        self._coded_forward = ENCODING[codecs.activations] * cut
        self._coded_backward = DECODING[codecs.gradients] * cut
        self._coded_step = DECODING[codecs.activations] * cut
        self._coded_gradient = ENCODING[codecs.gradients] * cut
        self._coded_export = (ENCODING[codecs.updates] + _CHANGE) * weights
        self._coded_update = (DECODING[codecs.updates] + _CHANGE) * weights

    def seconds(self, job: Job, batch: int, rates: Rates) -> float:
        """On a node with these rates."""
        if isinstance(job, SkipStep):  # nothing is done
            return 0.0
        seconds = self.flops(job, batch) / rates.flops_per_second + rates.overhead
        return seconds if rates.memory is None else seconds + self.moved(job, batch) / rates.memory

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
            case ServerStep(parts=parts, return_gradient=answered):
                return (self._server_both if answered else self._server_alone) * batch / parts
            case Merge(parts=updates):
                return 2.0 * self._device_parameters * (len(updates) + 1)
            case LoadModel() | ExportModel() | CutModel():
                return float(self._device_parameters)
            case Rebase():
                return 2.0 * self._device_parameters
            case OpenCopy():
                return float(self._server_parameters)
            case CloseCopy() | PlanRun() | Prepare() | SkipStep() | AddUp():
                return 0.0

    def moved(self, job: Job, batch: int) -> float:
        """Bytes that are read and written, as a whole mini-batch of ``batch`` samples has it."""
        match job:
            case Forward(parts=parts):
                return self._forward.of(batch / parts) + self._coded_forward * batch / parts
            case AuxiliaryStep():
                return self._auxiliary.of(batch)
            case FullStep():
                return self._full.of(batch)
            case Backward(parts=parts, apply=steps):
                own = self._backward_step if steps else self._backward
                return own.of(batch / parts) + self._coded_backward * batch / parts
            case ServerStep(part=part, parts=parts, return_gradient=answered):
                last = part + 1 == parts  # then the optimiser takes its step
                more = self._coded_gradient if answered else -self._entry
                own = self._server_step if last else self._server_pass
                return own.of(batch / parts) + (self._coded_step + more) * batch / parts
            case Merge(parts=updates, refresh=refreshed):
                # All updates and the global model are read, and the result is written.
                copy = self._server if self._copies else 0
                own_side = self._model * (len(updates) + 2) + self._coded_update * len(updates)
                return own_side + copy * (len(updates) + 2) + 2 * copy * len(refreshed)
            case ExportModel():
                return 2 * self._model + self._coded_export
            case LoadModel() | CutModel():
                return 2 * self._model
            case Rebase():  # the answer, what was handed in and the model are read
                return 4 * self._model
            case OpenCopy():
                return 2 * self._server
            case CloseCopy() | PlanRun() | Prepare() | SkipStep() | AddUp():
                return 0
