"""The server of a run over the network, with recorded steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fedoptima.core.jobs import CloseCopy, Job, PlanRun, ServerStep, cut_of
from fedoptima.core.machine import Outcome
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.engine.deferred_faults import Notes
from fedoptima.engine.graphs.recorder import AT_FIRST, Recorder, Recording, say_why_not
from fedoptima.engine.learner import Learner
from fedoptima.engine.payloads import Tensors
from fedoptima.engine.server import ServerEngine
from fedoptima.engine.streams import current_stream
from fedoptima.engine.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True)
class _Step:
    """A recorded step and what it reads."""

    recording: Recording[tuple[Tensors, Tensor]]  # gradients for the device, and the fault
    inputs: Tensors


class RecordedServer(ServerEngine):
    """Values are checked before a batch is admitted, so a step notes nothing but its own fault.

    What is recorded is replayed on the stream of the thread that executes jobs, like all its other
    work, one step after the other: all recordings share their memory, and those of equal shapes
    their inputs. Parts of a mini-batch are not recorded: a later one adds to the gradients of the
    first, wherever that has put them.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._recorder = Recorder(workload.compute, first=True)
        self._pool = torch.cuda.graph_pool_handle()
        self._records = workload.server_records
        self._steps: dict[tuple[object, ...], _Step] = {}
        self._seen: dict[tuple[object, ...], int] = {}
        self._inputs: dict[tuple[object, ...], Tensors] = {}
        self._fault: Tensor | None = None  # of the step that is being recorded
        self._recording = False

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        if isinstance(job, CloseCopy):
            self._steps = {k: s for k, s in self._steps.items() if k[0] != job.device}
            self._seen = {k: n for k, n in self._seen.items() if k[0] != job.device}
        elif isinstance(job, PlanRun):
            self._steps, self._seen, self._inputs = {}, {}, {}
        return super().execute(job, result)

    def _learner(self, who: str) -> Learner:
        return self._new_learner(who, static=True)

    def _train(
        self, learner: Learner, tensors: Tensors, job: ServerStep, notes: Notes | None
    ) -> Tensors:
        if not self._records or job.parts > 1:
            return self._eager(learner, tensors, job, notes)
        shapes = tuple((name, tensor.shape) for name, tensor in tensors.items())
        key = (self._owner(job), job.return_gradient, cut_of(job), shapes)
        step = self._steps.get(key)
        if step is None:
            if self._seen.setdefault(key, 0) < AT_FIRST:
                self._seen[key] += 1
                return self._eager(learner, tensors, job, notes)
            try:
                step = self._steps[key] = self._recorded(learner, tensors, job, shapes)
            except RuntimeError as error:
                say_why_not(SERVER, error)
                self._records = False
                self._steps.clear()
                learner.drop_gradients()
                return self._eager(learner, tensors, job, notes)
        else:
            learner.stepped()
        torch._foreach_copy_(list(step.inputs.values()), [tensors[n] for n in step.inputs])
        gradients, fault = step.recording.replay(lambda: self._seed_of(job))
        self._note(job.origin, fault)
        return {name: tensor.clone() for name, tensor in gradients.items()}

    def _eager(
        self, learner: Learner, tensors: Tensors, job: ServerStep, notes: Notes | None
    ) -> Tensors:
        super()._seed(job)
        train = super()._train
        return self._aside(lambda: train(learner, tensors, job, notes))

    def _seed(self, job: ServerStep) -> None:
        """A replay is seeded by itself."""

    def _note(self, device: NodeId, fault: Tensor, notes: Notes | None = None) -> None:
        if self._recording:
            self._fault = fault  # noted after every replay
        else:
            super()._note(device, fault, notes)

    def _recorded(
        self, learner: Learner, tensors: Tensors, job: ServerStep, shapes: tuple[object, ...]
    ) -> _Step:
        inputs = self._inputs.get(shapes)
        if inputs is None:
            inputs = self._inputs[shapes] = {name: t.clone() for name, t in tensors.items()}
        train, static = super()._train, inputs

        def work() -> tuple[Tensors, Tensor]:
            gradients = train(learner, static, job, None)
            assert self._fault is not None
            return gradients, self._fault

        self._recording = True
        try:
            return _Step(self._aside(lambda: self._recorder.record(work, self._pool)), inputs)
        finally:
            self._recording, self._fault = False, None

    def _aside(self, work: Callable[[], T]) -> T:
        """On the stream that records, which libraries prepare themselves for, in order with all
        other work of this thread."""
        stream, usual = self._recorder.stream, current_stream(self._workload.compute)
        stream.wait_stream(usual)
        with self._recorder.context():
            made = work()
        usual.wait_stream(stream)
        return made
