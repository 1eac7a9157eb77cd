"""Training steps as recorded CUDA graphs: one launch instead of hundreds, a stream for each node.

The engines of a simulation on a GPU. The first steps of a node are computed as they are anywhere
(libraries prepare themselves then); after that each kind of step is recorded once, and replayed
from then on, with the same kernels. A node's tensors stay where they are. What is handed from one
stream to another carries an event that the other one waits for; the host waits for nothing. What
cannot be recorded (data that is loaded by workers, a model that looks at values, robust merging)
is computed step by step, on the same streams.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedoptima.core.events import Metrics
from fedoptima.core.jobs import CloseCopy, Job, PlanRun, ServerStep
from fedoptima.core.machine import Outcome
from fedoptima.core.method import ServerTraining
from fedoptima.core.seeding import derive
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.data.dataset import Split
from fedoptima.data.loader import Loader
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.gpu_upload import Staged
from fedoptima.engine.learner import Learner
from fedoptima.engine.payloads import (
    ACTIVATIONS,
    AUXILIARY,
    LABELS,
    SHARE,
    Tensors,
    name_activation,
    pack,
)
from fedoptima.engine.server import ServerEngine
from fedoptima.engine.task import Task
from fedoptima.models.activation import tensors_of

_log = logging.getLogger(__name__)

T = TypeVar("T")
AT_FIRST = 2  # steps of each kind that are not recorded


@dataclass(frozen=True)
class Recording(Generic[T]):
    graph: torch.cuda.CUDAGraph
    generator: torch.Generator
    made: T  # what the work returned: tensors that every replay fills again

    def replay(self, seed: int) -> T:
        self.generator.manual_seed(seed)
        self.graph.replay()
        return self.made


class Recorder:
    """A stream, and what is recorded on it."""

    def __init__(self, compute: torch.device) -> None:
        self.compute = compute
        self.stream = torch.cuda.Stream(compute)  # type: ignore[no-untyped-call]
        # Dropout draws from the default generator, whose seed all graphs would share while they
        # run side by side.
        self._generator = torch.Generator(compute)

    def context(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def record(self, work: Callable[[], T], pool: Any = None) -> Recording[T]:
        """Call within `context`. ``pool``: memory that is shared with another recording, which is
        always replayed before this one."""
        graph = torch.cuda.CUDAGraph()
        default = torch.cuda.default_generators[self.stream.device.index]
        shared = default.graphsafe_get_state()
        collects = gc.isenabled()
        gc.disable()  # what it frees could not be recorded
        default.graphsafe_set_state(self._generator.graphsafe_get_state())
        try:
            graph.capture_begin(
                *([] if pool is None else [pool]), capture_error_mode="thread_local"
            )
            try:
                made = work()
            finally:
                graph.capture_end()
        finally:
            default.graphsafe_set_state(shared)
            if collects:
                gc.enable()
        return Recording(graph, self._generator, made)

    def staged(self, outcome: Outcome) -> Outcome:
        """With an event that tells when the result is there."""
        payload = outcome.result
        if not payload.value:
            return outcome
        value = Staged(payload.value, self.stream.record_event())  # type: ignore[arg-type]
        return replace(outcome, result=replace(payload, value=value))


def say_why_not(node: str, error: Exception) -> None:
    _log.warning(
        "%s: its steps cannot be recorded as CUDA graphs and are computed one by one (%s)",
        node,
        str(error).partition("\n")[0],
    )


# ---- a device ------------------------------------------------------------------------------------


@dataclass
class _Forward:
    """A recorded forward pass, and the steps that follow it."""

    recording: Recording[tuple[object, Tensor]]  # output and labels
    back: Recording[object] | None = None
    gradient: Tensors | None = None  # what `back` reads

    @property
    def labels(self) -> Tensor:
        return self.recording.made[1]


class GraphedDevice(DeviceEngine):
    def __init__(self, task: Task, node: NodeId, loader: Loader) -> None:
        self._recorder = Recorder(task.compute)
        self._records = isinstance(task.dataset.train, Split)
        super().__init__(task, node, loader, deferred=True)
        self._forget_recordings()

    def context(self) -> AbstractContextManager[object]:
        return self._recorder.context()

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        with self.context():
            return self._recorder.staged(super().execute(job, result))

    def reset(self) -> None:
        """What was recorded is kept: a restarted process works in the same memory."""
        learner = getattr(self, "_learner", None)
        plan = getattr(self, "_plan", "")
        super().reset()
        if learner is not None:
            with self.context():
                learner.forget_steps()
                learner.take_losses()
            self._kept = (plan, learner)

    def _forget_recordings(self) -> None:
        self._at_first = AT_FIRST
        self._seq = -1  # whose batch is in `_inputs`
        self._epoch = -1
        self._place = torch.zeros(1, dtype=torch.int64, device=self._task.compute)
        self._rows: Tensor | None = None
        self._drawn: Tensor | None = None
        self._inputs: Recording[tuple[Tensor, Tensor]] | None = None
        self._forwards: dict[tuple[int, int], _Forward] = {}
        self._full: Recording[Tensor] | None = None

    _kept: tuple[str, Learner] | None = None

    def _prepare(self, plan: str) -> None:
        self._plan, self._expected = plan, None
        self._waiting.clear()
        if self._kept is not None and self._kept[0] == plan:
            self._learner = self._kept[1]
            return
        self._forget_recordings()
        task = self._task
        self._learner = Learner(
            self._node, task.networks(plan), task.device_optimizer, task.schedule, static=True
        )
        torch.cuda.synchronize(task.compute)  # the networks of all were made on one stream

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        super().restore(state, tensors)
        torch.cuda.synchronize(self._task.compute)

    # ---- steps -------------------------------------------------------------------------------

    def _forward(self, seq: int, part: int, parts: int, result: PayloadId) -> Outcome:
        if not self._replays(last=part + 1 == parts):
            return super()._forward(seq, part, parts, result)
        try:
            forward = self._recorded_forward(seq, part, parts)
        except RuntimeError as error:
            self._give_up(error)
            return super()._forward(seq, part, parts, result)
        output, labels = forward.recording.replay(self._seed("step", seq, part))
        self._waiting[seq, part] = (parts, forward, labels)
        tensors = {n: t.clone() for n, t in {**name_activation(output), LABELS: labels}.items()}
        if parts > 1:
            share = len(labels) / self._loader.batch_size
            tensors[SHARE] = torch.full((), share, device=self._task.compute)
        return Outcome(pack(result, tensors))

    def _recorded_forward(self, seq: int, part: int, parts: int) -> _Forward:
        inputs, labels = self._batch_of(seq)
        forward = self._forwards.get((part, parts))
        if forward is None:

            def work() -> tuple[object, Tensor]:
                own = inputs if parts == 1 else inputs.tensor_split(parts)[part]
                said = labels if parts == 1 else labels.tensor_split(parts)[part]
                return self._learning().call(own), said

            forward = self._forwards[part, parts] = _Forward(self._recorder.record(work))
        return forward

    def _auxiliary_step(self, seq: int, result: PayloadId) -> Outcome:
        _, forward, labels = self._waiting[seq, 0]
        if not isinstance(forward, _Forward):
            return super()._auxiliary_step(seq, result)
        if forward.back is None:
            output = forward.recording.made[0]

            def work() -> object:
                said = self._learning().call(output, AUXILIARY)
                return self._learn(said, labels, result)

            forward.back = self._recorder.record(work, forward.recording.graph.pool())
        else:
            self._learning().stepped()
        del self._waiting[seq, 0]
        forward.back.replay(self._seed("auxiliary", seq))
        return Outcome(Payload(result, 0), samples=len(labels))

    def _full_step(self, seq: int, result: PayloadId) -> Outcome:
        if not self._replays(last=True):
            return super()._full_step(seq, result)
        try:
            inputs, labels = self._batch_of(seq)
            if self._full is None:

                def work() -> Tensor:
                    self._learn(self._learning().call(inputs), labels, result)
                    return labels

                self._full = self._recorder.record(work)
            else:
                self._learning().stepped()
        except RuntimeError as error:
            self._give_up(error)
            return super()._full_step(seq, result)
        self._full.replay(self._seed("step", seq, 0))
        return Outcome(Payload(result, 0), samples=len(labels))

    def _backward(
        self, seq: int, part: int, gradient: Tensors, apply: bool, result: PayloadId
    ) -> Outcome:
        _, forward, labels = self._waiting[seq, part]
        if not isinstance(forward, _Forward):
            return super()._backward(seq, part, gradient, apply, result)
        if forward.back is None or forward.gradient is None:
            forward.gradient = {name: tensor.clone() for name, tensor in gradient.items()}
            output, static = forward.recording.made[0], forward.gradient

            def work() -> object:
                pairs = [
                    (tensor, static[f"{ACTIVATIONS}{index}"])
                    for index, tensor in enumerate(tensors_of(output))
                    if tensor.requires_grad
                ]
                torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
                if apply:
                    self._learning().learn()
                return None

            forward.back = self._recorder.record(work, forward.recording.graph.pool())
        else:
            for name, tensor in forward.gradient.items():
                tensor.copy_(gradient[name])
        del self._waiting[seq, part]
        forward.back.replay(0)
        return Outcome(Payload(result, 0), samples=len(labels))

    def _seed(self, *what: str | int) -> int:
        return derive(self._task.planning.seed, self._node, *what)

    # ---- batches -----------------------------------------------------------------------------

    def _replays(self, *, last: bool) -> bool:
        """Is this step to be recorded or replayed? ``last``: of its mini-batch."""
        if not self._records or self._at_first > 0:
            self._at_first -= last
            return False
        return True

    def _give_up(self, error: Exception) -> None:
        say_why_not(self._node, error)
        self._records = False
        self._learning().drop_gradients()

    def _batch_of(self, seq: int) -> tuple[Tensor, Tensor]:
        if seq == self._seq and self._inputs is not None:
            return self._inputs.made
        number, place = divmod(seq, self._loader.per_epoch)
        if number != self._epoch:
            epoch = self._loader.epoch(number)
            if self._rows is None:
                self._rows = epoch.rows.clone()
                self._drawn = None if epoch.drawn is None else epoch.drawn.clone()
            else:
                self._rows.copy_(epoch.rows)
                if self._drawn is not None and epoch.drawn is not None:
                    self._drawn.copy_(epoch.drawn)
            self._epoch = number
        self._place.fill_(place)
        if self._inputs is None:
            self._inputs = self._recorder.record(self._select)
        self._seq = seq
        return self._inputs.replay(0)

    def _select(self) -> tuple[Tensor, Tensor]:
        assert self._rows is not None
        rows = self._rows.index_select(0, self._place)[0]
        drawn = None if self._drawn is None else self._drawn.index_select(0, self._place)[0]
        return self._loader.compute(rows, drawn)


# ---- the server ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """A recorded step and what it reads."""

    recording: Recording[Tensors]  # gradients
    tensors: Tensors
    place: Tensor
    room: int


class GraphedServer(ServerEngine):
    def __init__(self, task: Task) -> None:
        super().__init__(task, deferred=True)
        self._recorder = Recorder(task.compute)
        self._records = task.robust == "none"
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
        torch.cuda.synchronize(self._task.compute)
        return super().export()

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        super().restore(state, tensors)
        torch.cuda.synchronize(self._task.compute)

    def _lane(self, job: ServerStep) -> Recorder:
        if self._task.planning.training is not ServerTraining.PER_DEVICE:
            return self._recorder
        if job.origin not in self._lanes:
            lane = self._lanes[job.origin] = Recorder(self._task.compute)
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
        if not self._records or place is None or self.deferred is None:
            return super()._train(learner, tensors, job, place)
        shapes = tuple(tensor.shape for tensor in tensors.values())
        key = (self._owner(job), job.part, job.parts, job.return_gradient, shapes)
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
            for name, tensor in step.tensors.items():
                tensor.copy_(tensors[name])
            step.place.copy_(place)
        gradients = step.recording.replay(self._seed_of(job))
        learner.stepped()
        return {name: tensor.clone() for name, tensor in gradients.items()}

    def _owner(self, job: ServerStep) -> NodeId:
        per_device = self._task.planning.training is ServerTraining.PER_DEVICE
        return job.origin if per_device else SERVER

    def _recorded(
        self, learner: Learner, tensors: Tensors, job: ServerStep, place: Tensor
    ) -> _Step:
        assert self.deferred is not None
        static, own = {name: tensor.clone() for name, tensor in tensors.items()}, place.clone()
        train = super()._train
        recording = self._lane(job).record(lambda: train(learner, static, job, own))
        return _Step(recording, static, own, self.deferred.room)
