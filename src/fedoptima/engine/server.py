"""The Compute Engine of the server (paper Alg. 4, l. 5-20): trains, merges, evaluates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from torch import Tensor

from fedoptima.core.errors import InvariantBroken, TrainingDiverged
from fedoptima.core.events import Metrics
from fedoptima.core.jobs import CloseCopy, Job, Merge, OpenCopy, PlanRun, ReusedStep, ServerStep
from fedoptima.core.machine import Outcome
from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import Plan
from fedoptima.core.robust import as_text
from fedoptima.core.seeding import derive
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.engine.aggregator import DeltaOptimizer, merge
from fedoptima.engine.codecs import PLAIN_CUT, PLAIN_UPDATE, CutCodec, UpdateCodec
from fedoptima.engine.deferred_faults import DeferredFaults
from fedoptima.engine.determinism import seed_step
from fedoptima.engine.evaluator import Evaluator
from fedoptima.engine.faults import Faults
from fedoptima.engine.flat import in_one_piece
from fedoptima.engine.gpu_upload import all_arrive, arrived
from fedoptima.engine.learner import Learner
from fedoptima.engine.local_loss import CopyLosses
from fedoptima.engine.merging import choose, handed_in, is_finite, of_copies, where
from fedoptima.engine.network import Network
from fedoptima.engine.payload_validation import ExpectedActivations, ExpectedModel
from fedoptima.engine.payloads import (
    AUXILIARY,
    LABELS,
    SHARE,
    Tensors,
    copy_of,
    gradients_of,
    pack,
    rebuild_activation,
    under,
)
from fedoptima.engine.robustness import Parts, Robustness
from fedoptima.engine.server_admission import ServerAdmission
from fedoptima.engine.workload import Workload
from fedoptima.preprocess.split import DeviceSpeed


class ServerEngine(ServerAdmission):
    """Holds the global model: the device side (never trained here) and the server side."""

    def __init__(self, workload: Workload, *, deferred: bool = False) -> None:
        """``deferred``: the values of batches are checked while they train."""
        super().__init__(workload)
        self._defers = deferred
        self.merge_threads = 1
        self.plan: Plan | None = None
        self._activation: object = None
        self._cut, self._update_codec = PLAIN_CUT, PLAIN_UPDATE
        self._device_names: tuple[str, ...] = ()  # of tensors, without the auxiliary network's
        self._evaluator: Evaluator | None = None
        self._global: Tensors = {}  # what devices are sent: device side and auxiliary network
        self._network: Network | None = None  # the server side
        self._server: Learner | None = None  # the shared one, or the merged copies
        self._copies: dict[NodeId, Learner] = {}
        self._losses = CopyLosses(workload.local_loss)
        self._deltas = DeltaOptimizer()
        self._robustness = Robustness(workload.robust)
        self._faults = Faults()
        self._masks: set[str] = set()  # names of tensors that hold infinity from the beginning
        self._parameters: frozenset[str] = frozenset()  # in `_global`; the rest are buffers

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        match job:
            case PlanRun(devices):
                speeds = [DeviceSpeed(d.flops_per_second, d.bytes_per_second) for d in devices]
                plan = self._workload.plan(speeds)
                self._build(plan)
                model = pack(result, copy_of(self._global))
                return Outcome(model, text=plan.to_json(), micro_batches=plan.micro_batches)
            case ServerStep():
                return self._step(job, result)
            case Merge():
                text = self._merge(job)
                return Outcome(pack(result, copy_of(self._global)), text=text)
            case OpenCopy(device):
                self._open_copy(device)
                return Outcome(Payload(result, 0))
            case CloseCopy(device):
                self._copies.pop(device, None)
                self._losses.end(device)
                return Outcome(Payload(result, 0))
        raise InvariantBroken(f"a server does not run {type(job).__name__}")

    def _build(self, plan: Plan) -> None:
        self.plan = plan
        sides = self._workload.sides(plan)
        self._device_names = tuple(sides.device.state_dict())
        self._activation, self._cut = sides.activation, CutCodec.of(plan)
        self._global, parameters = {}, set[str]()
        for prefix, module in (("", sides.device), (AUXILIARY, sides.auxiliary)):
            if module is not None:
                state = copy_of(module.state_dict())
                self._global |= {prefix + name: tensor for name, tensor in state.items()}
                # Weights shared by two layers have two names, and neither is a buffer.
                named = module.named_parameters(remove_duplicate=False)
                parameters |= {prefix + name for name, _ in named}
        self._global = self._as_merged(self._global)
        self._parameters = frozenset(parameters)
        self._update_codec = UpdateCodec.of(plan.codecs.updates, self._global, self._parameters)
        update = ExpectedModel(self._global, self._parameters, self._update_codec)
        expected = replace(self.expected, update=update, batch=None)
        self._masks = {n for n, t in self._global.items() if not is_finite({n: t}, ())}
        self._robustness = Robustness(self._workload.robust)
        self._robustness.watch(self._parameters, self._global)
        self._evaluator = Evaluator(self._workload, plan)
        if self._defers:
            self.deferred = DeferredFaults({}, self._workload.compute)
        if sides.server is not None:
            batches = ExpectedActivations(
                sides.activation,
                batch_size=self._workload.planning.batch_size,
                labels=self._workload.labels,
                cut=self._cut,
            )
            expected = replace(expected, batch=batches)
            if self._defers:
                self.deferred = DeferredFaults(batches.ranges, self._workload.compute)
            self._network = self._workload.network(sides.server)
            self._server = self._learner("the server")
            own = self._server.tensors()
            self._masks |= {n for n, t in own.items() if not is_finite({n: t}, ())}
            self._robustness.watch(self._server.parameter_names(), own)
        self.expected = expected

    def _as_merged(self, model: Tensors) -> Tensors:
        """On a CPU in one piece, as updates are then: they are merged as a whole."""
        return in_one_piece(model) if self._workload.compute.type == "cpu" else model

    def _learner(self, who: str) -> Learner:
        return self._new_learner(who)

    def _new_learner(self, who: str, *, static: bool = False) -> Learner:
        if self._network is None:
            raise InvariantBroken("this method has no server side to train")
        workload = self._workload
        return Learner(
            who,
            {"": self._network},
            workload.server_optimizer,
            workload.server_schedule,
            undoable=True,
            static=static and workload.server_code.build is None,
            code=workload.server_code,
        )

    # ---- training ----------------------------------------------------------------------------

    def _step(self, job: ServerStep, result: PayloadId) -> Outcome:
        learner = self._learner_of(job)
        tensors = arrived(job.data, self._workload.compute)
        self._seed(job)
        if job.part + 1 == job.parts:
            learner.set_progress(job.progress)
        place = None if self.deferred is None else self.deferred.place(job.origin)
        gradients = self._train(learner, tensors, job, place)
        samples = len(tensors[LABELS])
        if job.return_gradient:
            return Outcome(pack(result, gradients), samples=samples)
        return Outcome(Payload(result, 0), samples=samples)

    def _seed(self, job: ServerStep) -> None:
        seed_step(self._seed_of(job), self._workload.compute)

    def _seed_of(self, job: ServerStep) -> int:
        again = ("use", job.use) if isinstance(job, ReusedStep) else ()
        return derive(self._workload.planning.seed, SERVER, job.origin, job.seq, job.part, *again)

    def _learner_of(self, job: ServerStep) -> Learner:
        per_device = self._workload.planning.training is ServerTraining.PER_DEVICE
        return self._copies[job.origin] if per_device else self._shared()

    def _train(
        self, learner: Learner, tensors: Tensors, job: ServerStep, place: Tensor | None
    ) -> Tensors:
        """One (micro-)batch; returns the gradients that a device may be sent.

        ``place``: where deferred faults of the job's origin are noted.
        """
        labels = tensors[LABELS]
        if job.part == 0:
            learner.begin()
        if self.deferred is not None and place is not None:
            assert self.expected.batch is not None
            comparable = self.expected.batch.comparable(tensors)
            learner.leave_out(self.deferred.saw(place, comparable))
            labels = self._workload.labels.within_range(labels)
        decoded, wanted = self._cut.decode(tensors), job.return_gradient
        activation = rebuild_activation(decoded, self._activation, gradients=wanted)
        loss = self._workload.loss(cast(Tensor, learner.call(activation)), labels)
        loss = self._losses.changed(loss, job.origin, learner)
        weighted = loss * tensors[SHARE].to(loss.dtype) if job.parts > 1 else loss
        weighted.backward()  # type: ignore[no-untyped-call]
        learner.note_loss(loss)
        if job.part + 1 == job.parts:
            self._robustness.limit(job.origin, learner, activation)
            self._note(job.origin, learner.learn_or_undo(), place)
        return self._cut.encode_gradients(gradients_of(activation)) if job.return_gradient else {}

    def _shared(self) -> Learner:
        if self._server is None:
            raise InvariantBroken("this method has no server side to train")
        return self._server

    # ---- aggregation -------------------------------------------------------------------------

    def _merge(self, job: Merge) -> str:
        """Merge both sides; returns the parts that were left out, and why, as text."""
        faulty = self._faults.named([part.device for part in job.parts])
        sides = [handed_in(job, self._global, self._workload.compute, self._update_codec)]
        if self._workload.planning.training is ServerTraining.PER_DEVICE:
            sides.append(of_copies(job, self._shared().tensors(), self._copies))
        refused, parts = choose(job, sides, faulty, self._robustness)
        if parts[0]:
            self._fold(job, parts)
        if len(sides) > 1:
            for device in job.refresh:
                if device in self._copies:
                    self._refresh(device)
        return as_text(refused, faulty)

    def _fold(self, job: Merge, sides: list[Parts]) -> None:
        """A result that is not finite is not used: the model stays as it was."""
        if job.server_optimizer is not None:
            merged = self._deltas.apply(
                self._global, sides[0], job.server_optimizer, self._parameters
            )
        else:
            merged = merge(self._global, job.keep, sides[0], self.merge_threads)
        finite = is_finite(merged, self._masks)
        self._global = where(finite, merged, self._global)
        if len(sides) > 1:
            shared = self._shared()
            own = merge(shared.tensors(), job.keep, sides[1])
            finite = finite & is_finite(own, self._masks)
            shared.load(where(finite, own, shared.tensors()))
        if len(job.parts) == 1 or not (finite.is_cuda or self.deferred):
            self._note(job.parts[0].device, (~finite).float())

    def _note(self, device: NodeId, fault: Tensor, place: Tensor | None = None) -> None:
        if self.deferred is None:
            self._faults.note(device, fault)
        else:
            self.deferred.note(self.deferred.place(device) if place is None else place, fault)

    def _open_copy(self, device: NodeId) -> None:
        if device not in self._copies:
            self._copies[device] = self._learner(f"{device}'s side of the server")
        self._refresh(device)

    def _refresh(self, device: NodeId) -> None:
        copy = self._copies[device]
        copy.load(self._shared().tensors())
        self._losses.begin(device, copy)

    # ---- results -----------------------------------------------------------------------------

    def evaluate(self) -> Metrics:
        return self.evaluation()()

    def evaluation(self) -> Callable[[], Metrics]:
        """The weights as they are now, to be evaluated later and on any thread.

        Call it on the thread that executes jobs. The result has modules of its own: training may
        continue in the meantime, and further evaluations may be taken.
        """
        if self._evaluator is None:
            raise InvariantBroken("nothing to evaluate before there is a plan")
        return self._evaluator.of(self.weights())

    def weights(self) -> Tensors:
        """Both sides as one, without the auxiliary network: to be read, not kept.

        By names, since a model trained whole may call a part of itself "aux".
        """
        whole = {name: self._global[name] for name in self._device_names}
        return whole if self._server is None else whole | self._server.tensors()

    def export(self) -> Tensors:
        """Both sides as one: loads into the plain model."""
        if self.plan is None:
            raise InvariantBroken("there is no model before there is a plan")
        return {name: tensor.detach().cpu().clone() for name, tensor in self.weights().items()}

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, object], Tensors]:
        if self.plan is None:
            return {"plan": ""}, {}
        all_arrive(self._workload.compute)  # payloads that wait in the core are saved after this
        tensors = {f"global.{name}": tensor for name, tensor in self._global.items()}
        tensors |= {f"velocity.{name}": t for name, t in self._deltas.velocity.items()}
        tensors |= {f"began.{name}": tensor for name, tensor in self._losses.save().items()}
        learners: dict[str, object] = {}
        for name, learner in self._named_learners().items():
            state, own = learner.save()
            learners[name] = state
            tensors |= {f"learner.{name}/{key}": tensor for key, tensor in own.items()}
        deferred, own = self.deferred.save() if self.deferred else ([], {})
        tensors |= {f"deferred.{name}": tensor for name, tensor in own.items()}
        robustness, own = self._robustness.save()
        tensors |= {f"robustness.{name}": tensor for name, tensor in own.items()}
        weights = self._global | (self._server.tensors() if self._server else {})
        if not is_finite(weights, self._masks):
            raise TrainingDiverged("the model is not finite")
        return {
            "plan": self.plan.to_json(),
            "learners": learners,
            "robustness": robustness,
            "faulty": self._faults.save(),
            "deferred": deferred,
        }, tensors

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        plan = cast(str, state["plan"])
        if not plan:
            return
        self._build(Plan.from_json(plan))
        self._global = self._as_merged(under("global.", tensors))
        self._deltas.velocity = under("velocity.", tensors)
        self._faults.restore(cast(list[NodeId], state.get("faulty", [])))
        if self.deferred is not None:
            devices = cast(list[NodeId], state.get("deferred", []))
            self.deferred.restore(devices, under("deferred.", tensors))
        if "robustness" in state:
            robustness = cast(Mapping[str, object], state["robustness"])
            self._robustness.restore(robustness, under("robustness.", tensors))
        learners = cast(Mapping[str, Mapping[str, object]], state["learners"])
        for name in learners:
            if name != SERVER:
                self._open_copy(NodeId(name))
        for name, learner in self._named_learners().items():
            learner.restore(learners[name], under(f"learner.{name}/", tensors))
        self._losses.restore(under("began.", tensors))

    def _named_learners(self) -> dict[NodeId, Learner]:
        shared = {} if self._server is None else {SERVER: self._server}
        return {**shared, **self._copies}
