"""The server of a simulation, with recorded steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from fedoptima.core.events import Metrics
from fedoptima.core.jobs import CloseCopy, Job, PlanRun, ServerStep, cut_of
from fedoptima.core.machine import Outcome
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.engine.graphs.recorder import AT_FIRST, Recorder, Recording, say_why_not
from fedoptima.engine.learner import Learner
from fedoptima.engine.payloads import (
    Tensors,
)
from fedoptima.engine.server import ServerEngine
from fedoptima.engine.workload import Workload


@dataclass(frozen=True)
class _Step:
    """A recorded step and what it reads."""

    recording: Recording[Tensors]  # gradients
    tensors: Tensors
    place: Tensor
    room: int


class GraphedServer(ServerEngine):
    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, deferred=True)
        self._recorder = Recorder(workload.compute, first=True)  # its steps are one chain
        ours = workload.server_code.build is None and workload.loss_is_ours
        hooked = workload.planning.training is ServerTraining.PER_DEVICE and workload.local_loss
        self._records = ours and workload.robust == "none" and not hooked
        self._lanes: dict[NodeId, Recorder] = {}  # of copies, which do not wait for each other
        self._steps: dict[tuple[object, ...], _Step] = {}
        self._seen: dict[tuple[object, ...], int] = {}

    def context(self) -> AbstractContextManager[object]:
        for lane in self._lanes.values():
            self._recorder.stream.wait_stream(lane.stream)
        return self._recorder.context()

    def context_of(self, device: NodeId) -> AbstractContextManager[object]:
        return self._lanes.get(device, self._recorder).context()

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        if isinstance(job, ServerStep):
            lane = self._lane(job)
            with lane.context():
                return lane.staged(super().execute(job, result))
        with self.context():
            if isinstance(job, CloseCopy | PlanRun):
                self._forget_steps(job.device if isinstance(job, CloseCopy) else None)
            outcome = self._recorder.staged(super().execute(job, result))
            for lane in self._lanes.values():
                lane.stream.wait_stream(self._recorder.stream)
            return outcome

    def evaluation(self) -> Callable[[], Metrics]:
        with self.context():
            return super().evaluation()

    def export(self) -> Tensors:
        torch.cuda.synchronize(self._workload.compute)
        return super().export()

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        super().restore(state, tensors)
        torch.cuda.synchronize(self._workload.compute)

    def _lane(self, job: ServerStep) -> Recorder:
        if self._workload.planning.training is not ServerTraining.PER_DEVICE:
            return self._recorder
        if job.origin not in self._lanes:
            lane = self._lanes[job.origin] = Recorder(self._workload.compute)
            lane.stream.wait_stream(self._recorder.stream)
        return self._lanes[job.origin]

    def _forget_steps(self, device: NodeId | None) -> None:
        self._steps = {
            k: s for k, s in self._steps.items() if device is not None and k[0] != device
        }
        self._seen = {k: n for k, n in self._seen.items() if device is not None and k[0] != device}

    def _learner(self, who: str) -> Learner:
        return self._new_learner(who, static=True)

    def _train(
        self, learner: Learner, tensors: Tensors, job: ServerStep, place: Tensor | None
    ) -> Tensors:
        if not self._records or place is None or self.deferred is None or self._mixes(job):
            return super()._train(learner, tensors, job, place)
        shapes = tuple(tensor.shape for tensor in tensors.values())
        key = (self._owner(job), job.part, job.parts, job.return_gradient, cut_of(job), shapes)
        step = self._steps.get(key)
        if step is None or step.room != self.deferred.room:
            if self._seen.setdefault(key, 0) < AT_FIRST:
                self._seen[key] += 1
                return super()._train(learner, tensors, job, place)
            try:
                step = self._steps[key] = self._recorded(learner, tensors, job, place)
            except RuntimeError as error:
                say_why_not(SERVER, error)
                self._records = False
                learner.drop_gradients()
                return super()._train(learner, tensors, job, place)
        else:
            given = [*(tensors[name] for name in step.tensors), place]
            torch._foreach_copy_([*step.tensors.values(), step.place], given)
            learner.stepped()
        gradients = step.recording.replay(lambda: self._seed_of(job))
        return {name: tensor.clone() for name, tensor in gradients.items()}

    def _mixes(self, job: ServerStep) -> bool:
        """Would parts of different devices, of other sizes, add to each other's gradients?"""
        per_device = self._workload.planning.training is ServerTraining.PER_DEVICE
        return job.parts > 1 and not per_device

    def _owner(self, job: ServerStep) -> NodeId:
        per_device = self._workload.planning.training is ServerTraining.PER_DEVICE
        return job.origin if per_device else SERVER

    def _recorded(
        self, learner: Learner, tensors: Tensors, job: ServerStep, place: Tensor
    ) -> _Step:
        assert self.deferred is not None
        static, own = {name: tensor.clone() for name, tensor in tensors.items()}, place.clone()
        train = super()._train
        recording = self._lane(job).record(lambda: train(learner, static, job, own))
        return _Step(recording, static, own, self.deferred.room)
