"""What is trained: the model's first weights, the data, and how. Shared by all engines of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedoptima.config.training import OptimizerConfig, Precision, ScheduleConfig
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Metrics
from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import Plan
from fedoptima.core.robust import RobustBarrier
from fedoptima.core.stopping import FALLING
from fedoptima.core.types import NodeId
from fedoptima.data.dataset import Dataset, Split
from fedoptima.engine.codecs import CutCodec
from fedoptima.engine.determinism import draws_in_recurrent_layers, draws_nothing
from fedoptima.engine.device_figures import with_devices
from fedoptima.engine.evaluation import (
    Tally,
    batch_within_memory,
    evaluate_batch,
    forward_pass,
    joined,
    start_evaluation,
)
from fedoptima.engine.local_loss import LocalLoss
from fedoptima.engine.misfit import copy_of, remedy
from fedoptima.engine.network import Network
from fedoptima.engine.optimizer import OURS, LearnerCode, build_optimizer
from fedoptima.engine.payloads import AUXILIARY
from fedoptima.engine.precision import as_it_is, forward, products
from fedoptima.models.activation import Inputs, map_tensors, samples_in, shapes_in_words
from fedoptima.preprocess.plan import Costs, PlanSettings, make_plan
from fedoptima.preprocess.probe import Clock, measure_speed
from fedoptima.preprocess.profile import profile_module
from fedoptima.preprocess.sides import MeasuredCosts, Sides, build_sides
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.tasks.checks import check_loss_of, check_output
from fedoptima.tasks.labels import LabelRule
from fedoptima.tasks.ready import TORCHS_OWN, is_ours
from fedoptima.tasks.task import Loss, Task

_EXAMPLE = 2  # samples: batch-norm layers refuse a batch of one


@dataclass(frozen=True)
class Workload:
    model: nn.Module  # with its first weights; never trained itself
    dataset: Dataset
    validation: Split
    planning: PlanSettings
    device_optimizer: OptimizerConfig
    server_optimizer: OptimizerConfig
    schedule: ScheduleConfig
    compute: torch.device
    evaluation_batch: int | None = None  # None: as many as a bound on memory allows
    precision: Precision = "float32"
    device_code: LearnerCode = OURS
    server_code: LearnerCode = OURS
    device_validation: Mapping[NodeId, Split] = field(default_factory=dict)  # of their own data
    falls: Callable[[str], bool] = FALLING.__contains__  # is less of a metric better?
    robust: RobustBarrier = "none"
    local_loss: LocalLoss | None = None
    stored_costs: Costs | None = None  # None: they are measured

    @property
    def device_schedule(self) -> ScheduleConfig:
        return self.device_optimizer.schedule or self.schedule

    @property
    def server_schedule(self) -> ScheduleConfig:
        return self.server_optimizer.schedule or self.schedule

    @property
    def has_copies(self) -> bool:
        """Every device has a server side to itself."""
        return self.planning.training is ServerTraining.PER_DEVICE

    @property
    def server_records(self) -> bool:
        """The server's steps can be recorded: nothing in them asks a GPU for a value."""
        ours = self.server_code.build is None and self.loss_is_ours
        ours = ours and not self.draws_in_recurrent_layers
        hooked = self.has_copies and self.local_loss is not None
        return ours and self.robust == "none" and not hooked

    @property
    def copies_share_nothing(self) -> bool:
        """Steps of different copies may run side by side on a GPU. Robust merging compares each
        with the last ones of the others, and what a user wrote may remember them."""
        return self.has_copies and self.server_records

    @property
    def task(self) -> Task:
        return self.dataset.task

    @cached_property
    def loss(self) -> Loss:
        """Where the model is: a loss may have weights of its own."""
        loss = self.task.loss
        return deepcopy(loss).to(self.compute) if isinstance(loss, nn.Module) else loss

    @property
    def loss_is_ours(self) -> bool:
        """Then it can be recorded: what a user wrote may ask a GPU for a value, or remember."""
        return is_ours(self.task.loss)

    @cached_property
    def draws_in_recurrent_layers(self) -> bool:
        return draws_in_recurrent_layers(self.model)

    @cached_property
    def losses_draw_nothing(self) -> bool:
        """It is known that they draw no random numbers."""
        return self.local_loss is None and self.task.loss in TORCHS_OWN

    @cached_property
    def draws_nothing(self) -> bool:
        """Nor do the server's steps: nothing has to be seeded."""
        ours = self.losses_draw_nothing and self.server_code.build is None
        return ours and draws_nothing(self.model)

    @cached_property
    def labels(self) -> LabelRule:
        """What labels a batch may have."""
        return self.dataset.label_rule

    @cached_property
    def example(self) -> Inputs:
        """A small batch of what the model takes in, on the CPU."""
        return self._inputs(_EXAMPLE)

    def _inputs(self, count: int) -> Inputs:
        """That many samples as the model takes them, on the CPU; the first ones, repeated."""
        train = self.dataset.train
        rows = (torch.arange(count) % len(train)).to(train.index_device)
        inputs, _ = train.order(rows, seed=self.planning.seed, epoch=0)()
        prepared: Inputs = self.dataset.prepare(map_tensors(inputs, Tensor.cpu))
        return prepared

    def measure_speed(
        self, seconds_budget: float = 0.5, batch: int = 16, *, clock: Clock = time.perf_counter
    ) -> float:
        """FLOP/s of this machine at training this model (o_k), which is left untouched."""
        if batch < 1:
            raise ConfigError(f"batch = {batch}: must be at least 1")
        inputs = self._inputs(batch)
        cost = profile_module(self.model, inputs)  # on the CPU, where every layer can be counted
        inputs = map_tensors(inputs, lambda tensor: tensor.to(self.compute))
        model = self.model if self.compute.type == "cpu" else deepcopy(self.model).to(self.compute)
        flops = (cost.forward_flops + cost.backward_flops) * batch
        with products(self.precision, self.compute):
            return measure_speed(model, inputs, flops, seconds_budget=seconds_budget, clock=clock)

    def plan(self, devices: list[DeviceSpeed]) -> Plan:
        """Made once for the same devices: predictions need it several times, and it is slow."""
        known = self._plans.get(tuple(devices))
        if known is None:
            self.check_model()
            measured = MeasuredCosts(self.model, self.example, self.planning)
            costs = self.stored_costs or measured
            known = make_plan(costs, devices, self.planning)
            self._plans[tuple(devices)] = known
        return known

    @cached_property
    def _plans(self) -> dict[tuple[DeviceSpeed, ...], Plan]:
        return {}

    def sides(self, plan: Plan) -> Sides:
        """Fresh copies of both sides of the network, on the compute device."""
        # The model itself is cut, and the parts are copied: cutting it may take seconds, and is
        # then done once for a model.
        return _on(
            deepcopy(build_sides(self.model, self.example, plan, self.planning)), self.compute
        )

    def sides_by_cut(self, plan: Plan) -> dict[int, Sides]:
        """Of every cut that devices may have, in their order; 0: of the one that all have.

        They share their weights, as far as they hold the same blocks.
        """
        if not plan.cuts:
            return {0: self.sides(plan)}
        model, example, planning = self.model, self.example, self.planning
        made = {
            cut.split: build_sides(model, example, plan.at(cut.split), planning)
            for cut in plan.cuts
        }
        return {cut: _on(sides, self.compute) for cut, sides in deepcopy(made).items()}

    def networks(self, plan: str) -> dict[str, Network]:
        """What all devices of this process compute with: their side and the auxiliary network."""
        known = self._networks.get(plan)
        if known is None:
            sides = self.sides(Plan.from_json(plan))
            known = {"": self.network(sides.device)}
            if sides.auxiliary is not None:
                known[AUXILIARY] = self.network(sides.auxiliary)
            self._networks[plan] = known
        return known

    @cached_property
    def _networks(self) -> dict[str, dict[str, Network]]:
        return {}

    def cut_codec(self, plan: str) -> CutCodec:
        """How what crosses the cut of this plan is sent."""
        known = self._cut_codecs.get(plan)
        if known is None:
            known = self._cut_codecs[plan] = CutCodec.of(Plan.from_json(plan))
        return known

    @cached_property
    def _cut_codecs(self) -> dict[str, CutCodec]:
        return {}

    def network(self, module: nn.Module) -> Network:
        return Network(module, self.forward if self.precision == "bf16" else as_it_is)

    def forward(self, module: nn.Module, value: object) -> object:
        """The module's output, computed in the run's precision."""
        return forward(module, value, self.precision, self.compute)

    def evaluate(self, sides: Sequence[nn.Module], data: Split | None = None) -> Metrics:
        """Both sides in sequence, by the task's figures; on the validation data by default.

        They are put into evaluation mode, so they must not be the ones that train.
        """
        return self.start_evaluation(sides, data)()

    def start_evaluation(
        self, sides: Sequence[nn.Module], data: Split | None = None
    ) -> Callable[[], Metrics]:
        """The same, to be waited for later: the sides are in use until then."""
        whole = self._begun(sides, self.validation if data is None else data)
        own = self.device_validation.items() if data is None else ()
        devices = {device: self._begun(sides, part, lenient=True) for device, part in own}
        if not devices:
            return whole
        return lambda: with_devices(
            whole(), {d: figures() for d, figures in devices.items()}, self.falls
        )

    def _begun(
        self, sides: Sequence[nn.Module], data: Split, *, lenient: bool = False
    ) -> Callable[[], Metrics]:
        return start_evaluation(
            sides,
            data,
            self.evaluated_at_once,
            prepare=self.dataset.prepare,
            forward=self.forward,
            loss=self.loss,
            task=self.task,
            lenient=lenient,
        )

    @property
    def evaluated_at_once(self) -> int:
        """Samples in a batch of an evaluation."""
        return self.evaluation_batch or batch_within_memory(self._trial[1], self.compute)

    @cached_property
    def evaluation_batches(self) -> list[tuple[int, int]]:
        """Part of the data, and number of the batch in it: what an evaluation consists of."""
        size = self.evaluated_at_once
        counts = [-(-len(part) // size) for part in self._evaluated]
        return [(part, number) for part, count in enumerate(counts) for number in range(count)]

    @property
    def _evaluated(self) -> list[Split]:
        return [self.validation, *self.device_validation.values()]

    def evaluate_batch(self, sides: Sequence[nn.Module], number: int) -> Tally:
        """One of the batches that an evaluation on a CPU has; `joined` adds them up."""
        part, place = self.evaluation_batches[number]
        tally = evaluate_batch(
            sides,
            self._evaluated[part],
            place,
            self.evaluated_at_once,
            prepare=self.dataset.prepare,
            forward=self.forward,
            loss=self.loss,
            task=self.task,
        )
        return replace(tally, part=part)

    def joined(self, tallies: Iterable[Tally]) -> Metrics:
        """The metrics of all batches, in their order."""
        parts: list[list[Tally]] = [[] for _ in self._evaluated]
        for tally in tallies:
            parts[tally.part].append(tally)
        whole, *own = parts
        figures = joined(whole, self.task)
        if not own:
            return figures
        devices = zip(self.device_validation, own, strict=True)
        return with_devices(
            figures,
            {d: joined(tallies, self.task, lenient=True) for d, tallies in devices},
            self.falls,
        )

    def check_model(self) -> None:
        """A model that does not fit the data is found before anything is trained; so is an
        optimiser that does not take the model's parameters."""
        try:
            output, _ = self._trial
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the model does not take this data (a batch of {shapes_in_words(self.example)}): "
                f"{error}{remedy(self.model, self.example, error)}"
            ) from error
        check_output(output, self.planning.output, samples_in(self.example), self.task)
        assert isinstance(output, Tensor)
        labels = self.dataset.train.labels
        labels = labels[torch.arange(len(output)) % len(labels)].to(self.compute)
        check_loss_of(self.loss, output.to(self.compute), labels)
        trained = [tensor for tensor in self.model.parameters() if tensor.requires_grad]
        for settings, code in (
            (self.device_optimizer, self.device_code),
            (self.server_optimizer, self.server_code),
        ):
            if trained and (code.build is not None or settings.options):
                build_optimizer(settings, list(trained), build=code.build)

    @cached_property
    def _trial(self) -> tuple[object, int]:
        """The output for the example, and the bytes that a sample takes on the way."""
        return forward_pass(copy_of(self.model).eval(), self.example)


def _on(sides: Sides, compute: torch.device) -> Sides:
    for module in (sides.device, sides.auxiliary, sides.server):
        if module is not None:
            module.to(compute)
    return sides
