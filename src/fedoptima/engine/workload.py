"""What is trained: the model's first weights, the data, and how. Shared by all engines of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedoptima.config.training import OptimizerConfig, Precision, ScheduleConfig
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Metrics
from fedoptima.core.plan import Plan
from fedoptima.core.robust import RobustBarrier
from fedoptima.data.dataset import Dataset, Split
from fedoptima.engine.evaluation import (
    Loss,
    Sums,
    batch_within_memory,
    evaluate_batch,
    forward_pass,
    start_evaluation,
)
from fedoptima.engine.local_loss import LocalLoss
from fedoptima.engine.network import Network
from fedoptima.engine.payloads import AUXILIARY
from fedoptima.engine.precision import forward, products
from fedoptima.models.activation import Inputs, map_tensors, samples_in, shapes_in_words
from fedoptima.preprocess.plan import Costs, PlanSettings, make_plan
from fedoptima.preprocess.probe import Clock, measure_speed
from fedoptima.preprocess.profile import profile_module
from fedoptima.preprocess.sides import MeasuredCosts, Sides, build_sides
from fedoptima.preprocess.split import DeviceSpeed

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
    loss: Loss = cross_entropy
    evaluation_batch: int | None = None  # None: as many as a bound on memory allows
    precision: Precision = "float32"
    robust: RobustBarrier = "none"
    local_loss: LocalLoss | None = None
    stored_costs: Costs | None = None  # None: they are measured

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
        sides = deepcopy(build_sides(self.model, self.example, plan, self.planning))
        for module in (sides.device, sides.auxiliary, sides.server):
            if module is not None:
                module.to(self.compute)
        return sides

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

    def network(self, module: nn.Module) -> Network:
        return Network(module, self.forward)

    def forward(self, module: nn.Module, value: object) -> object:
        """The module's output, computed in the run's precision."""
        return forward(module, value, self.precision, self.compute)

    def evaluate(self, sides: Sequence[nn.Module], data: Split | None = None) -> Metrics:
        """Accuracy and loss of both sides in sequence; on the validation data by default.

        They are put into evaluation mode, so they must not be the ones that train.
        """
        return self.start_evaluation(sides, data)()

    def start_evaluation(
        self, sides: Sequence[nn.Module], data: Split | None = None
    ) -> Callable[[], Metrics]:
        """The same, to be waited for later: the sides are in use until then."""
        data = self.validation if data is None else data
        return start_evaluation(
            sides,
            data,
            self.evaluated_at_once,
            prepare=self.dataset.prepare,
            forward=self.forward,
            loss=self.loss,
        )

    @property
    def evaluated_at_once(self) -> int:
        """Samples in a batch of an evaluation."""
        return self.evaluation_batch or batch_within_memory(self._trial[1], self.compute)

    def evaluate_batch(self, sides: Sequence[nn.Module], number: int) -> Sums:
        """One of the batches that an evaluation on a CPU has; `evaluation.joined` adds them up."""
        return evaluate_batch(
            sides,
            self.validation,
            number,
            self.evaluated_at_once,
            prepare=self.dataset.prepare,
            forward=self.forward,
            loss=self.loss,
        )

    def check_model(self) -> None:
        """A model that does not fit the data is found before anything is trained."""
        try:
            output, _ = self._trial
        except Exception as error:
            raise ConfigError(
                f"the model does not take this data (a batch of {shapes_in_words(self.example)}): "
                f"{error}"
            ) from error
        classes, count = self.planning.classes, samples_in(self.example)
        if not isinstance(output, Tensor) or output.shape != (count, classes):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ConfigError(
                f"the model returns {shape} for {count} samples, but the data has "
                f"{classes} classes: it must return ({count}, {classes})"
            )

    @cached_property
    def _trial(self) -> tuple[object, int]:
        """The output for the example, and the bytes that a sample takes on the way."""
        return forward_pass(deepcopy(self.model).eval(), self.example)
