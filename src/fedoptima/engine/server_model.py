"""The global model as the server holds it: built from a plan, read, saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from fedoptima.core.errors import InvariantBroken, TrainingDiverged
from fedoptima.core.events import Metrics
from fedoptima.core.plan import Plan
from fedoptima.core.types import SERVER, NodeId
from fedoptima.engine.aggregator import DeltaOptimizer, RunningSum
from fedoptima.engine.codecs import PLAIN_UPDATE, UpdateCodec
from fedoptima.engine.cut_models import CutModels
from fedoptima.engine.deferred_faults import DeferredFaults
from fedoptima.engine.entrances import Entrance, allowed_ranges, entrances_of
from fedoptima.engine.evaluator import Evaluator
from fedoptima.engine.faults import Faults
from fedoptima.engine.flat import in_one_piece
from fedoptima.engine.gpu_upload import all_arrive
from fedoptima.engine.learner import Learner
from fedoptima.engine.local_loss import CopyLosses
from fedoptima.engine.merging import is_finite
from fedoptima.engine.network import Network
from fedoptima.engine.payload_validation import ExpectedModel
from fedoptima.engine.payloads import (
    AUXILIARY,
    Tensors,
    copy_of,
    under,
)
from fedoptima.engine.robustness import Robustness
from fedoptima.engine.server_admission import Expected, ServerAdmission
from fedoptima.engine.workload import Workload


class ServerModel(ServerAdmission):
    """The device side (never trained here) and the server side."""

    def __init__(self, workload: Workload, *, deferred: bool = False) -> None:
        """``deferred``: the values of batches are checked while they train."""
        super().__init__(workload)
        self._defers = deferred
        self.merge_threads = 1
        self.plan: Plan | None = None
        self._entrances: dict[int, Entrance] = {}  # of activations, by cut
        self._cuts: CutModels | None = None  # where devices have cuts of their own
        self._update_codec = PLAIN_UPDATE
        self._device_names: tuple[str, ...] = ()  # of tensors, without the auxiliary network's
        self._evaluator: Evaluator | None = None
        self._global: Tensors = {}  # what devices are sent: device side and auxiliary network
        self._network: Network | None = None  # the server side
        self._server: Learner | None = None  # the shared one, or the merged copies
        self._copies: dict[NodeId, Learner] = {}
        self._losses = CopyLosses(workload.local_loss)
        self._deltas = DeltaOptimizer()
        self._sum = RunningSum()  # of updates that a barrier has counted in this round
        self._robustness = Robustness(workload.robust)
        self._faults = Faults()
        self._masks: set[str] = set()  # names of tensors that hold infinity from the beginning
        self._parameters: frozenset[str] = frozenset()  # in `_global`; the rest are buffers

    def _build(self, plan: Plan) -> None:
        self.plan = plan
        all_sides = self._workload.sides_by_cut(plan)
        sides = all_sides[min(all_sides)]
        self._device_names = tuple(sides.device.state_dict())
        self._cuts = CutModels(plan, all_sides) if plan.cuts else None
        self._global, parameters = {}, set[str]()
        for prefix, module in (("", sides.device), (AUXILIARY, sides.auxiliary)):
            if module is not None and not (prefix and self._cuts):
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
        self._entrances = entrances_of(self._workload, plan, all_sides)
        if self._defers:
            ranges = allowed_ranges(self._entrances.values())
            self.deferred = DeferredFaults(ranges, self._workload.compute)
        if self._entrances:
            first = self._entrances[min(self._entrances)]
            expected, self._network = replace(expected, batch=first.expected), first.network
            self._server = self._learner("the server")
            own = self._server.tensors()
            self._masks |= {n for n, t in own.items() if not is_finite({n: t}, ())}
            self._robustness.watch(self._server.parameter_names(), own)
        if self._cuts:
            extra = self._cuts.save()
            self._masks |= {
                n.partition(".")[2] for n, t in extra.items() if not is_finite({n: t}, ())
            }
            own_cuts = {
                cut: Expected(expected.model_bytes, update, self._entrances[cut].expected)
                for cut, update in self._cuts.expected.items()
            }
            expected = replace(expected, cuts=own_cuts)
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

    def _shared(self) -> Learner:
        if self._server is None:
            raise InvariantBroken("this method has no server side to train")
        return self._server

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
        if self._cuts:
            tensors |= {f"auxiliary.{name}": t for name, t in self._cuts.save().items()}
        tensors |= {f"velocity.{name}": t for name, t in self._deltas.velocity.items()}
        sums, own = self._sum.save()
        tensors |= {f"sum.{name}": t for name, t in own.items()}
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
            "sum": sums,
        }, tensors

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        plan = cast(str, state["plan"])
        if not plan:
            return
        self._build(Plan.from_json(plan))
        self._global = self._as_merged(under("global.", tensors))
        if self._cuts:
            self._cuts.restore(under("auxiliary.", tensors))
        self._deltas.velocity = under("velocity.", tensors)
        if "sum" in state:
            self._sum.restore(cast(Mapping[str, object], state["sum"]), under("sum.", tensors))
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
