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
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.engine.deferred_faults import Notes
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
    notes: Notes
    # Of the parameters, before and after it: a later part of a mini-batch adds to them in place.
    found: list[Tensor | None]
    left: list[Tensor | None]


class GraphedServer(ServerEngine):
    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, deferred=True)
        self._recorder = Recorder(workload.compute, first=True)  # its steps are one chain
        self._records = workload.server_records
        self._lanes: dict[NodeId, Recorder] = {}  # of copies, which do not wait for each other
        self._steps: dict[tuple[object, ...], _Step] = {}
        self._seen: dict[tuple[object, ...], int] = {}
        self._replays: dict[NodeId, bool] = {}  # the mini-batch that has begun, with all its parts

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
            try:
                return self._recorder.staged(super().execute(job, result))
            finally:
                for lane in self._lanes.values():
                    lane.stream.wait_stream(self._recorder.stream)

    def evaluation(self) -> Callable[[], Metrics]:
        with self.context():
            return super().evaluation()

    def export(self) -> Tensors:
        torch.cuda.synchronize(self._workload.compute)
        return super().export()

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        torch.cuda.synchronize(self._workload.compute)  # what is restored was read on another
        with self.context():
            super().restore(state, tensors)
        torch.cuda.synchronize(self._workload.compute)

    def _lane(self, job: ServerStep) -> Recorder:
        if not self._workload.copies_share_nothing:
            return self._recorder
        if job.origin not in self._lanes:
            lane = self._lanes[job.origin] = Recorder(self._workload.compute)
            lane.stream.wait_stream(self._recorder.stream)
        return self._lanes[job.origin]

    def _forget_steps(self, device: NodeId | None) -> None:
        self._recorder.stream.synchronize()  # it waits for the lanes; a graph may still run there
        self._steps = {
            k: s for k, s in self._steps.items() if device is not None and k[0] != device
        }
        self._seen = {k: n for k, n in self._seen.items() if device is not None and k[0] != device}
        self._replays = {
            d: r for d, r in self._replays.items() if device is not None and d != device
        }

    def _learner(self, who: str) -> Learner:
        return self._new_learner(who, static=True)

    def _train(
        self, learner: Learner, tensors: Tensors, job: ServerStep, notes: Notes | None
    ) -> Tensors:
        if not self._records or notes is None or self.deferred is None or self._mixes(job):
            return super()._train(learner, tensors, job, notes)
        shapes = tuple(tensor.shape for tensor in tensors.values())
        key = (self._owner(job), job.part, job.parts, job.return_gradient, cut_of(job), shapes)
        if not self._is_replayed(key, job):
            return super()._train(learner, tensors, job, notes)
        step = self._steps.get(key)
        if step is None or not self._holds(step, learner, job):
            earlier = learner.held_gradients() if job.part else []
            try:
                step = self._steps[key] = self._recorded(learner, tensors, job)
            except RuntimeError as error:
                say_why_not(SERVER, error)
                self._records = False
                learner.drop_gradients()
                if earlier:
                    learner.hold_gradients(earlier)
                return super()._train(learner, tensors, job, notes)
        else:
            torch._foreach_copy_(list(step.tensors.values()), [tensors[n] for n in step.tensors])
            learner.stepped()
        gradients = step.recording.replay(lambda: self._seed_of(job))
        notes.add(step.notes)
        if job.parts > 1:  # a checkpoint looks for them there
            learner.hold_gradients(step.left)
        return {name: tensor.clone() for name, tensor in gradients.items()}

    def _is_replayed(self, key: tuple[object, ...], job: ServerStep) -> bool:
        """The first parts of a mini-batch decide for the others, which add to their gradients; a
        run that goes on from between two parts computes the rest one by one."""
        owner = self._owner(job)
        if job.part == 0:
            seen = self._seen.setdefault(key, 0)
            self._seen[key] = seen + 1
            self._replays[owner] = seen >= AT_FIRST
        return self._replays.get(owner, False)

    def _holds(self, step: _Step, learner: Learner, job: ServerStep) -> bool:
        """Is what it was recorded with still at its place?"""
        if job.part == 0:
            return True
        now = learner.held_gradients()
        return all(one is other for one, other in zip(step.found, now, strict=True))

    def _mixes(self, job: ServerStep) -> bool:
        """Would parts of different devices, of other sizes, add to each other's gradients?"""
        return job.parts > 1 and not self._workload.has_copies

    def _recorded(self, learner: Learner, tensors: Tensors, job: ServerStep) -> _Step:
        assert self.deferred is not None
        static, notes = (
            {name: tensor.clone() for name, tensor in tensors.items()},
            self.deferred.new_notes(),
        )
        train = super()._train

        def work() -> Tensors:
            notes.forget()
            return train(learner, static, job, notes)

        found = learner.held_gradients() if job.part else []
        recording = self._lane(job).record(work)
        left = learner.held_gradients() if job.parts > 1 else []
        return _Step(recording, static, notes, found, left)
