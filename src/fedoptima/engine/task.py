"""What is trained: the model's first weights, the data, and how. Shared by all engines of a run."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Dataset, Split
from fedoptima.engine.settings import OptimizerSettings, Schedule
from fedoptima.preprocess.plan import Plan, PlanSettings, Sides, build_sides, make_plan
from fedoptima.preprocess.split import DeviceSpeed

Loss = Callable[[Tensor, Tensor], Tensor]

_EXAMPLE = 2  # samples: batch-norm layers refuse a batch of one


@dataclass(frozen=True)
class Task:
    model: nn.Module  # with its first weights; never trained itself
    dataset: Dataset
    validation: Split
    planning: PlanSettings
    device_optimizer: OptimizerSettings
    server_optimizer: OptimizerSettings
    schedule: Schedule
    compute: torch.device
    loss: Loss = cross_entropy
    evaluation_batch: int = 500

    @cached_property
    def example(self) -> Tensor:
        """A small batch of what the model takes in, on the CPU."""
        inputs = self.dataset.train.inputs[:_EXAMPLE].cpu()
        if len(inputs) < _EXAMPLE:
            inputs = inputs.repeat_interleave(_EXAMPLE, dim=0)[:_EXAMPLE]
        return self.dataset.prepare(inputs)

    def plan(self, devices: list[DeviceSpeed]) -> Plan:
        self._check_model()
        return make_plan(self.model, self.example, devices, self.planning)

    def sides(self, plan: Plan) -> Sides:
        """Fresh copies of both sides of the network, on the compute device."""
        model = deepcopy(self.model)
        sides = build_sides(model, self.example, plan, self.planning)
        for module in (sides.device, sides.auxiliary, sides.server):
            if module is not None:
                module.to(self.compute)
        return sides

    def _check_model(self) -> None:
        """A model that does not fit the data is found before anything is trained."""
        try:
            with torch.no_grad():
                output = deepcopy(self.model).eval()(self.example)
        except Exception as error:
            raise ConfigError(
                f"the model does not take this data (a batch of shape {tuple(self.example.shape)}, "
                f"{self.example.dtype}): {error}"
            ) from error
        classes = self.planning.classes
        if not isinstance(output, Tensor) or output.shape != (len(self.example), classes):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ConfigError(
                f"the model puts out {shape} for {len(self.example)} samples, but the data has "
                f"{classes} classes: it must put out ({len(self.example)}, {classes})"
            )
