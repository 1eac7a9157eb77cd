"""Compute Engines without torch: the maths is one number, and the order of jobs is watched.

The weights are floats that every job really changes, so a job that is lost, repeated or run in
another order ends in another number, and `ToyServer.evaluate` puts that number into the trace.
Each engine also insists on what a real one relies on: a backward pass follows its own forward
pass, a server step finds its copy open, a merge finds both sides of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from fedoptima.core.errors import NotFinite, TrainingDiverged
from fedoptima.core.jobs import (
    AddUp,
    AuxiliaryStep,
    Backward,
    CloseCopy,
    ExportModel,
    FoldedMerge,
    Forward,
    FullStep,
    Job,
    LoadModel,
    Merge,
    OpenCopy,
    PlanRun,
    Prepare,
    Rebase,
    ReusedStep,
    ServerStep,
    SkipStep,
)
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import Message, ModelUpdate
from fedoptima.core.types import NodeId, Payload, PayloadId

if TYPE_CHECKING:
    from fedoptima.engine.losses import Losses

MODEL_BYTES = 1000
ACTIVATION_BYTES = 2000
BATCH = 4
PLAN = "plan"


def number(payload: Payload) -> float:
    assert isinstance(payload.value, float), f"{payload} came without its value"
    return payload.value


class ToyDevice:
    """Pulls its weight towards ``target``; from step ``fails_at`` on, training raises ``error``."""

    def __init__(
        self,
        target: float,
        *,
        error: Exception | None = None,
        fails_at: int = 0,
        hands_in_nan: bool = False,
        batch: int = BATCH,
    ) -> None:
        self._batch = batch
        self._hands_in_nan = hands_in_nan
        self._target = target
        self._error = error
        self._fails_at = fails_at
        self.reset()

    losses: Losses | None = None  # its losses are not checked

    def reset(self) -> None:
        self._prepared = False
        self._weight: float | None = None
        self._sent: float | None = None  # handed in, and trained on since
        self._begun = 0.0
        self._forwarded: list[tuple[int, int]] = []  # forward passes without their backward pass

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        match job:
            case Prepare(plan):
                assert plan == PLAN
                assert not self._prepared, "built twice in one life"
                self._prepared = True
                self._weight = None
                return Outcome(Payload(result, 0))
            case LoadModel(data):
                assert self._prepared, "a model is loaded into a network that was never built"
                self._weight = self._begun = number(data)
                self._sent = None
                self._forwarded.clear()
                return Outcome(Payload(result, 0))
        assert self._weight is not None, f"{job} without a model"
        match job:
            case Rebase(data):
                assert not self._forwarded, "rebased with a backward pass to come"
                assert self._sent is not None, "rebased without having handed in"
                self._weight = number(data) + (self._weight - self._sent)
                self._sent = None
                return Outcome(Payload(result, 0))
            case Forward(seq, part):
                self._forwarded.append((seq, part))
                activation = self._weight + 0.01 * (seq % 5) + 0.001 * part
                return Outcome(Payload(result, ACTIVATION_BYTES, activation))
            case AuxiliaryStep(seq):
                self._forwarded.remove((seq, 0))
                return self._train(seq, self._weight - self._target, self._batch, result)
            case SkipStep(seq):
                self._forwarded.remove((seq, 0))
                return Outcome(Payload(result, 0), self._batch)
            case FullStep(seq):
                return self._train(seq, self._weight - self._target, self._batch, result)
            case Backward(seq, part, gradient, apply, parts):
                self._forwarded.remove((seq, part))
                assert apply == (not self._forwarded and part == parts - 1)
                samples = self._batch // parts + (part < self._batch % parts)
                return self._train(seq, number(gradient), samples, result)
            case ExportModel(delta, keep):
                assert not self._forwarded, "handed in with a backward pass to come"
                assert self._sent is None, "handed in before the last answer came"
                self._sent = self._weight if keep else None
                value = self._weight - self._begun if delta else self._weight
                value = math.nan if self._hands_in_nan else value
                return Outcome(Payload(result, MODEL_BYTES, value))
        raise AssertionError(f"not a device's job: {job}")

    def _train(self, seq: int, slope: float, samples: int, result: PayloadId) -> Outcome:
        if self._error is not None and seq >= self._fails_at:
            raise self._error
        assert self._weight is not None
        self._weight -= 0.1 * slope + 0.001 * (seq % 7)
        return Outcome(Payload(result, 0), samples)


class ToyServer:
    def __init__(
        self,
        *,
        per_device: bool = False,
        dry: bool = False,
        rises: bool = True,
        diverges_at: int | None = None,
        error: Exception | None = None,
    ) -> None:
        self._per_device = per_device
        self._diverges_at = diverges_at  # the evaluation that finds a loss that is not finite
        self._error = error  # raised by every merge
        self._dry = dry
        self._rises = rises  # does the accuracy get better with training?
        self.weight = 0.0
        self._server_side = 0.0
        self._copies: dict[NodeId, float] = {}
        self._merges = 0
        self._sum = self._samples = 0.0  # of updates that were added up
        self.evaluations = 0

    def save(self) -> dict[str, object]:
        """What a checkpoint holds."""
        return {**vars(self), "_copies": dict(self._copies)}

    def restore(self, saved: Mapping[str, object]) -> None:
        vars(self).update(saved)
        self._copies = dict(self._copies)

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        match job:
            case PlanRun(devices):
                assert list(devices) == sorted(devices, key=lambda profile: profile.device)
                return Outcome(Payload(result, MODEL_BYTES, self.weight), text=PLAN)
            case OpenCopy(device):
                assert self._per_device
                self._copies[device] = self._server_side
                return Outcome(Payload(result, 0))
            case CloseCopy(device):
                self._copies.pop(device, None)
                return Outcome(Payload(result, 0))
            case ServerStep(origin=origin, data=data, part=part, parts=parts):
                side = self._copies[origin] if self._per_device else self._server_side
                gradient = side - number(data)
                side -= 0.05 * gradient
                if self._per_device:
                    self._copies[origin] = side
                else:
                    self._server_side = side
                samples = BATCH // parts + (part < BATCH % parts)
                return Outcome(Payload(result, ACTIVATION_BYTES, gradient), samples)
            case AddUp(part):
                self._sum += part.weight * number(part.data)
                self._samples += part.weight
                return Outcome(Payload(result, 0))
            case Merge():
                self._merge(job)
                return Outcome(Payload(result, MODEL_BYTES, self.weight))
        raise AssertionError(f"not a server's job: {job}")

    def _merge(self, job: Merge) -> None:
        assert [part.device for part in job.parts] == sorted(part.device for part in job.parts)
        if self._error is not None:
            raise self._error
        self._merges += 1
        if isinstance(job, FoldedMerge):
            step = self._sum / self._samples
            self._sum = self._samples = 0.0
        else:
            step = sum(part.weight * number(part.data) for part in job.parts)
        rate = job.server_optimizer.learning_rate if job.server_optimizer else 1.0
        self.weight = job.keep * self.weight + rate * step
        if self._per_device:
            sides = sum(part.weight * self._copies[part.device] for part in job.parts)
            self._server_side = job.keep * self._server_side + sides
            for device in job.refresh:
                if device in self._copies:
                    self._copies[device] = self._server_side

    def inspect(self, message: Message) -> None:
        pass

    deferred = None  # its values are not checked later

    def admit(self, message: Message, values: object = None) -> None:
        if isinstance(message, ModelUpdate) and math.isnan(number(message.data)):
            raise NotFinite("the update is NaN")

    def evaluate(self) -> tuple[tuple[str, float], ...]:
        self.evaluations += 1
        if self.evaluations == self._diverges_at:
            raise TrainingDiverged("the server's loss is not a number")
        if self._dry:
            return ()
        accuracy = 1 - 1 / (self._merges + 1) if self._rises else 0.5
        return (("accuracy", accuracy), ("weights", self.weight), ("server", self._server_side))


class ToyCosts:
    """Every job costs its work over the node's speed; planning is free."""

    def __init__(self, speeds: Mapping[NodeId, float]) -> None:
        self._speeds = speeds

    def seconds(self, node: NodeId, job: Job) -> float:
        return _WORK[type(job)] / self._speeds[node]


_WORK: dict[type, float] = cast(
    dict[type, float],
    {
        Prepare: 0.0,
        LoadModel: 0.1,
        Rebase: 0.1,
        Forward: 1.0,
        AuxiliaryStep: 2.0,
        SkipStep: 0.0,
        Backward: 2.0,
        FullStep: 4.0,
        ExportModel: 0.1,
        PlanRun: 0.0,
        OpenCopy: 0.1,
        CloseCopy: 0.0,
        ServerStep: 3.0,
        ReusedStep: 3.0,
        Merge: 0.5,
        FoldedMerge: 0.5,
    },
)
