"""A device of a simulation whose steps are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedoptima.core.jobs import Job
from fedoptima.core.machine import Outcome
from fedoptima.core.seeding import derive
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.data.dataset import Split
from fedoptima.data.loader import Batch, Loader
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.graphs.recorder import AT_FIRST, Recorder, Recording, say_why_not
from fedoptima.engine.learner import Learner
from fedoptima.engine.payloads import (
    AUXILIARY,
    LABELS,
    SHARE,
    Tensors,
    name_activation,
    pack,
    propagate,
)
from fedoptima.engine.workload import Workload
from fedoptima.models.activation import Inputs, map_tensors


@dataclass
class _Forward:
    """A recorded forward pass, and the steps that follow it."""

    recording: Recording[tuple[object, Tensor, Tensors]]  # output, labels, and what is sent
    back: Recording[object] | None = None
    gradient: Tensors | None = None  # what `back` reads
    # Of the parameters, after `back`: the next part of the mini-batch adds to them in place.
    left: list[Tensor | None] = field(default_factory=list)


class GraphedDevice(DeviceEngine):
    def __init__(self, workload: Workload, node: NodeId, loader: Loader) -> None:
        self._recorder = Recorder(workload.compute)
        # A hook reads the weights that a round began with, and those are at no fixed place.
        fixed = workload.local_loss is None
        self._records = (
            fixed
            and isinstance(workload.dataset.train, Split)
            and workload.device_code.build is None
            and workload.loss_is_ours
            and not workload.draws_in_recurrent_layers
        )
        super().__init__(workload, node, loader, deferred=True)
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
        # In the epoch: of the step that is replayed next. A replay itself moves on to the next.
        self._place = torch.zeros(1, dtype=torch.int64, device=self._workload.compute)
        self._stands_at = 0
        self._rows: Tensor | None = None
        self._labels: Tensor | None = None
        self._drawn: Tensor | None = None
        self._inputs: Recording[Batch] | None = None
        self._forwards: dict[tuple[int, int], _Forward] = {}
        self._full: Recording[Tensor] | None = None

    _kept: tuple[str, Learner] | None = None

    def _prepare(self, plan: str) -> None:
        self._plan, self._expected = plan, None
        self._waiting.clear()
        if self._kept is not None and self._kept[0] == plan:
            self._learner = self._kept[1]
            return
        self._kept = None  # its recordings go now
        self._forget_recordings()
        workload = self._workload
        self._learner = Learner(
            self._node,
            workload.networks(plan),
            workload.device_optimizer,
            workload.device_schedule,
            static=workload.device_code.build is None,
            code=workload.device_code,
        )
        torch.cuda.synchronize(workload.compute)  # the networks of all were made on one stream

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        torch.cuda.synchronize(self._workload.compute)  # what is restored was read on another
        with self.context():  # half-done steps are computed again: their backward follows here
            super().restore(state, tensors)
        torch.cuda.synchronize(self._workload.compute)

    def _load(self, tensors: Tensors, progress: float) -> None:
        self._forget_halves()
        super()._load(tensors, progress)

    def _rebase(self, tensors: Tensors, progress: float) -> None:
        self._forget_halves()
        super()._rebase(tensors, progress)

    def _forget_halves(self) -> None:
        """The other half of these was to be recorded next; the model under them changes now."""
        halves = [key for key, forward in self._forwards.items() if forward.back is None]
        if halves:
            self._recorder.stream.synchronize()  # a graph's seed may be in memory of all streams
        for key in halves:
            del self._forwards[key]

    # ---- steps -------------------------------------------------------------------------------

    def _forward(self, seq: int, part: int, parts: int, result: PayloadId) -> Outcome:
        if not self._replays(last=part + 1 == parts):
            return super()._forward(seq, part, parts, result)
        try:
            forward = self._recorded_forward(seq, part, parts)
        except RuntimeError as error:
            self._give_up(error)
            return super()._forward(seq, part, parts, result)
        _, labels, sent = forward.recording.replay(lambda: self._seed("step", seq, part))
        self._waiting[seq, part] = (parts, forward, labels)
        tensors = {name: tensor.clone() for name, tensor in sent.items()}
        assert self._labels is not None
        whole = self._labels[seq % self._loader.per_epoch]
        if parts == 1:
            tensors[LABELS] = whole
        else:
            tensors[LABELS] = labels.clone()
            tensors[SHARE] = self._workload.task.share(labels, whole)
        return Outcome(pack(result, tensors))

    def _recorded_forward(self, seq: int, part: int, parts: int) -> _Forward:
        forward = self._forwards.get((part, parts))
        if parts == 1:
            self._point_at(seq)

            def whole() -> tuple[object, Tensor, Tensors]:
                return self._passed(*self._select())

            if forward is None:
                forward = self._forwards[part, parts] = _Forward(self._recorder.record(whole))
            return forward
        inputs, labels = self._batch_of(seq)
        if forward is None:

            def work() -> tuple[object, Tensor, Tensors]:
                own = map_tensors(inputs, lambda tensor: tensor.tensor_split(parts)[part])
                return self._passed(own, labels.tensor_split(parts)[part])

            forward = self._forwards[part, parts] = _Forward(self._recorder.record(work))
        return forward

    def _passed(self, inputs: Inputs, labels: Tensor) -> tuple[object, Tensor, Tensors]:
        output = self._learning().call(inputs)
        return output, labels, self._cut.encode(name_activation(output))

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
        forward.back.replay(lambda: self._seed("auxiliary", seq))
        return Outcome(Payload(result, 0), samples=len(labels))

    def _full_step(self, seq: int, result: PayloadId) -> Outcome:
        if not self._replays(last=True):
            return super()._full_step(seq, result)
        try:
            self._point_at(seq)
            if self._full is None:

                def work() -> Tensor:
                    inputs, labels = self._select()
                    self._learn(self._learning().call(inputs), labels, result)
                    return labels

                self._full = self._recorder.record(work)
            else:
                self._learning().stepped()
        except RuntimeError as error:
            self._give_up(error)
            return super()._full_step(seq, result)
        labels = self._full.replay(lambda: self._seed("step", seq, 0))
        return Outcome(Payload(result, 0), samples=len(labels))

    def _backward(
        self, seq: int, part: int, gradient: Tensors, apply: bool, result: PayloadId
    ) -> Outcome:
        parts, forward, labels = self._waiting[seq, part]
        if not isinstance(forward, _Forward):
            return super()._backward(seq, part, gradient, apply, result)
        learner = self._learning()
        if forward.back is None or forward.gradient is None:
            forward.gradient = {name: tensor.clone() for name, tensor in gradient.items()}
            output, static = forward.recording.made[0], forward.gradient

            def work() -> object:
                propagate(output, static)
                if apply:
                    learner.learn()
                return None

            forward.back = self._recorder.record(work, forward.recording.graph.pool())
            forward.left = learner.held_gradients()
        else:
            for name, tensor in forward.gradient.items():
                tensor.copy_(gradient[name])
        del self._waiting[seq, part]
        forward.back.replay()
        if parts > 1:  # a checkpoint looks for them there
            learner.hold_gradients(forward.left)
        return Outcome(Payload(result, 0), samples=len(labels))

    def _seed(self, *what: str | int) -> int:
        return derive(self._workload.planning.seed, self._node, *what)

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

    def _batch_of(self, seq: int) -> Batch:
        if seq == self._seq and self._inputs is not None:
            return self._inputs.made
        self._point_at(seq)
        if self._inputs is None:
            self._inputs = self._recorder.record(self._select)
        self._seq = seq
        return self._inputs.replay()

    def _point_at(self, seq: int) -> None:
        """The next `_select` takes the batch of this step."""
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
            # Sent along with activations, and therefore never changed.
            self._labels = self._loader.labels(epoch.rows)
            self._epoch = number
        if place != self._stands_at:
            self._place.fill_(place)
        self._stands_at = place + 1

    def _select(self) -> Batch:
        assert self._rows is not None
        rows = self._rows.index_select(0, self._place)[0]
        drawn = None if self._drawn is None else self._drawn.index_select(0, self._place)[0]
        self._place.add_(1)
        return self._loader.compute(rows, drawn)
