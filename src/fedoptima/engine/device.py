"""The Compute Engine of a device (paper Alg. 1, l. 4-15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from fedoptima.core.codecs import Codec
from fedoptima.core.errors import InvariantBroken, ProtocolViolation, TrainingDiverged
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    FullStep,
    Job,
    LoadModel,
    Prepare,
    Rebase,
    SkipStep,
)
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import GlobalModel, Message
from fedoptima.core.seeding import derive
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.data.loader import Loader
from fedoptima.engine.aggregator import carried_over, difference
from fedoptima.engine.codecs import CutCodec, UpdateCodec
from fedoptima.engine.determinism import seed_step
from fedoptima.engine.gpu_upload import arrived, stage_message
from fedoptima.engine.learner import Learner
from fedoptima.engine.local_loss import changed_loss
from fedoptima.engine.losses import Losses
from fedoptima.engine.payload_validation import ExpectedModel
from fedoptima.engine.payloads import (
    AUXILIARY,
    LABELS,
    SHARE,
    Tensors,
    copy_of,
    name_activation,
    pack,
    propagate,
    under,
)
from fedoptima.engine.shared_learners import SharedLearners
from fedoptima.engine.weights import MemoryFor
from fedoptima.engine.workload import Workload
from fedoptima.models.activation import Inputs, map_tensors


class DeviceEngine:
    """Trains a device's side of the network on the device's own samples."""

    def __init__(
        self, workload: Workload, node: NodeId, loader: Loader, *, deferred: bool = False
    ) -> None:
        """``deferred``: the losses are not checked here, but by whoever asks for `losses`."""
        self._shared: SharedLearners | None = None
        self._memory: MemoryFor | None = None
        self._learner: Learner | None = None
        self._workload = workload
        self._deferred = deferred
        self._node = node
        self._loader = loader
        self.reset()

    def reset(self) -> None:
        """The state of a process that has just started."""
        self._part_with_learner()
        self._plan = ""
        self.losses: Losses | None = None  # of the last round
        self._expected: ExpectedModel | None = None  # what the server may send
        # Forward passes whose backward pass is to come: (seq, part) -> (parts, output, labels).
        self._waiting: dict[tuple[int, int], tuple[int, object, Tensor]] = {}
        self._received: Tensors = {}  # the model this round began with
        self._sent: Tensors = {}  # the model that was exported, while it is trained on
        self._batch: tuple[int, Inputs, Tensor] | None = None  # the last one drawn

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        match job:
            case Prepare(plan):
                self._prepare(plan)
                return Outcome(Payload(result, 0))
            case LoadModel(data, progress):
                self._load(arrived(data, self._workload.compute), progress)
                return Outcome(Payload(result, 0))
            case Rebase(data, progress):
                self._rebase(arrived(data, self._workload.compute), progress)
                return Outcome(Payload(result, 0))
            case Forward(seq, part, parts):
                return self._forward(seq, part, parts, result)
            case AuxiliaryStep(seq):
                return self._auxiliary_step(seq, result)
            case SkipStep(seq):
                _, _, labels = self._waiting.pop((seq, 0))
                return Outcome(Payload(result, 0), samples=len(labels))
            case Backward(seq, part, gradient, apply):
                tensors = self._cut.decode_gradients(arrived(gradient, self._workload.compute))
                return self._backward(seq, part, tensors, apply, result)
            case FullStep(seq):
                return self._full_step(seq, result)
            case ExportModel(delta, keep):
                return Outcome(pack(result, self._export(delta, keep)))
        raise InvariantBroken(f"a device does not run {type(job).__name__}")

    # ---- messages: on the thread that receives them ------------------------------------------

    def admit(self, message: Message) -> None:
        """Raise ProtocolViolation if the server's model does not match the plan."""
        if isinstance(message, GlobalModel) and self._plan:
            self._expected_model().check(message.data)

    def _expected_model(self) -> ExpectedModel:
        if self._expected is None:
            self._expected = self._expected_in("float32")
        return self._expected

    def _expected_in(self, codec: Codec) -> ExpectedModel:
        def made() -> ExpectedModel:
            networks = self._workload.networks(self._plan)
            first = {
                prefix + name: tensor
                for prefix, network in networks.items()
                for name, tensor in network.first().items()
            }
            names = self._learning().parameter_names()
            return ExpectedModel(first, names, UpdateCodec.of(codec, first, names))

        return self._shared.expected(self._plan, codec, made) if self._shared else made()

    def receive(self, message: Message) -> Message:
        """An admitted message, with its tensors being copied to the compute device."""
        return stage_message(message, self._workload.compute)

    @property
    def _cut(self) -> CutCodec:
        return self._workload.cut_codec(self._plan)

    # ---- jobs --------------------------------------------------------------------------------

    def _prepare(self, plan: str) -> None:
        workload = self._workload

        def made() -> Learner:
            return Learner(
                self._node,
                workload.networks(plan),
                workload.device_optimizer,
                workload.device_schedule,
                code=workload.device_code,
            )

        self._part_with_learner()
        self._learner = self._shared.take(plan, self._node, made) if self._shared else made()
        self._waiting.clear()
        # Last: `admit` looks at a model, on another thread, as soon as there is a plan.
        self._plan, self._expected = plan, None

    def _load(self, tensors: Tensors, progress: float) -> None:
        self._waiting.clear()
        self._received = tensors
        learner = self._learning()
        learner.load(tensors, self._memory)
        learner.set_progress(progress)

    def _rebase(self, tensors: Tensors, progress: float) -> None:
        learner = self._learning()
        own, names = learner.tensors(), learner.parameter_names()
        learner.load(carried_over(tensors, own, self._sent, names))
        learner.set_progress(progress)
        self._received, self._sent = tensors, {}

    def _forward(self, seq: int, part: int, parts: int, result: PayloadId) -> Outcome:
        output, labels, share = self._run(seq, part, parts)
        self._waiting[seq, part] = (parts, output, labels)
        tensors = {**self._cut.encode(name_activation(output)), LABELS: labels}
        if share is not None:
            tensors[SHARE] = share
        return Outcome(pack(result, tensors))

    def _run(self, seq: int, part: int, parts: int) -> tuple[object, Tensor, Tensor | None]:
        """Output and labels of one part of a mini-batch, and its share where it is not all."""
        if self._batch is None or self._batch[0] != seq:  # the parts of a mini-batch share it
            self._batch = (seq, *self._loader.batch(seq))
        _, inputs, labels = self._batch
        share: Tensor | None = None
        if parts > 1:
            inputs = map_tensors(inputs, lambda tensor: tensor.tensor_split(parts)[part])
            whole, labels = labels, labels.tensor_split(parts)[part]
            share = self._workload.task.share(labels, whole)
        self._seed_torch("step", seq, part)
        output = self._learning().call(inputs)
        return output, labels, share

    def _auxiliary_step(self, seq: int, result: PayloadId) -> Outcome:
        _, output, labels = self._waiting.pop((seq, 0))
        self._seed_torch("auxiliary", seq)  # others have drawn since the forward pass
        return self._learn(self._learning().call(output, AUXILIARY), labels, result)

    def _seed_torch(self, *purpose: str | int) -> None:
        workload = self._workload
        if not (workload.losses_draw_nothing and self._learning().draws_nothing):
            seed = derive(workload.planning.seed, self._node, *purpose)
            seed_step(seed, workload.compute)

    def _full_step(self, seq: int, result: PayloadId) -> Outcome:
        output, labels, _ = self._run(seq, 0, 1)
        return self._learn(output, labels, result)

    def _learn(self, output: object, labels: Tensor, result: PayloadId) -> Outcome:
        if not isinstance(output, Tensor):
            raise InvariantBroken("the model did not return one tensor")
        learner, loss = self._learning(), self._workload.loss(output, labels)
        if self._workload.local_loss is not None:
            loss = changed_loss(self._workload.local_loss, loss, learner, self._received)
        loss.backward()  # type: ignore[no-untyped-call]
        learner.note_loss(loss)
        learner.learn()
        return Outcome(Payload(result, 0), samples=len(labels))

    def _backward(
        self, seq: int, part: int, gradient: Tensors, apply: bool, result: PayloadId
    ) -> Outcome:
        _, output, labels = self._waiting.pop((seq, part))
        propagate(output, gradient)
        if apply:
            learner, hook = self._learning(), self._workload.local_loss
            if hook is not None:
                none = torch.zeros((), device=self._workload.compute)
                changed = changed_loss(hook, none, learner, self._received)
                if changed.requires_grad:
                    changed.backward()  # type: ignore[no-untyped-call]
            learner.learn()
        return Outcome(Payload(result, 0), samples=len(labels))

    def _export(self, delta: bool, keep: bool) -> Tensors:
        learner = self._learning()
        self.losses = learner.take_losses()
        if not self._deferred:
            self.losses.check()
        self._waiting.clear()
        received = self._received
        if keep:
            tensors = self._sent = copy_of(learner.tensors())
        else:  # the next round begins with another model
            tensors = learner.lend() if self._shared else learner.hand_over()
            self._received = {}
        names = learner.parameter_names()
        codec = UpdateCodec.of(self._cut.codecs.updates, tensors, names)
        changed = names if delta else codec.names
        return codec.encode(difference(tensors, received, changed) if changed else tensors)

    def _learning(self) -> Learner:
        if self._learner is None:
            raise InvariantBroken(f"{self._node} works without having prepared")
        return self._learner

    # ---- between two rounds ------------------------------------------------------------------

    def set_aside(self) -> tuple[dict[str, object], Tensors]:
        """What a device keeps between two rounds, as `save` returns it; here nothing is kept."""
        self._batch = self.losses = None
        state, tensors = self._learning().set_aside()
        self._part_with_learner()
        return {"plan": self._plan, "learner": state, "waiting": []}, tensors

    def share(self, learners: SharedLearners, memory: MemoryFor | None = None) -> None:
        """From now on have a learner in a round only, with its weights in ``memory``.

        What is exported is where the weights were. If no memory is given, or they are not in one
        piece, that is the learner's own, which is used for another device after `set_aside`.
        """
        self._shared, self._memory = learners, memory

    def _part_with_learner(self) -> None:
        if self._shared and self._learner:
            self._shared.give_back(self._plan, self._learner)
        self._learner = None

    def take_up(self, state: Mapping[str, object], tensors: Tensors) -> None:
        """What another engine of this device has set aside or saved."""
        if state["plan"] != self._plan or self._learner is None:
            self.reset()
            if state["plan"]:
                self._prepare(cast(str, state["plan"]))
        if state["plan"] and not state["waiting"] and not _holds_model(tensors):
            self._learning().take_up(cast(Mapping[str, object], state["learner"]), tensors)
        else:
            self.restore(state, tensors)

    def inspect(self, update: Payload) -> Exception | None:
        """What is wrong with the update that was exported last, or with the losses before it."""
        try:
            if self.losses is not None:
                self.losses.check()
            self._expected_in(self._cut.codecs.updates).check(update)
        except (TrainingDiverged, ProtocolViolation) as error:
            return error
        return None

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, object], Tensors]:
        if self._learner is None:
            return {"plan": ""}, {}
        state, tensors = self._learner.save()
        received = {f"received.{name}": t for name, t in self._received.items()}
        received |= {f"sent.{name}": t for name, t in self._sent.items()}
        waiting = [(seq, part, parts) for (seq, part), (parts, *_) in self._waiting.items()]
        whole: dict[str, object] = {"plan": self._plan, "learner": state, "waiting": waiting}
        return whole, {**tensors, **received}

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        self.reset()
        plan = cast(str, state["plan"])
        if not plan:
            return
        self._prepare(plan)
        learner = self._learning()
        saved = cast(Mapping[str, object], state["learner"])
        learner.restore(saved, tensors)
        # A graph cannot be saved, but it can be rebuilt: the weights are those of the forward
        # pass. The pass would update running statistics twice, so these are restored after it.
        for seq, part, parts in cast(list[tuple[int, int, int]], state["waiting"]):
            output, labels, _ = self._run(seq, part, parts)
            self._waiting[seq, part] = (parts, output, labels)
        if self._waiting:
            learner.restore_buffers(tensors)
        self._received = under("received.", tensors)
        self._sent = under("sent.", tensors)


def _holds_model(tensors: Tensors) -> bool:
    """Or a round has begun."""
    return any(name.startswith(("model.", "received.")) for name in tensors)
