"""What a recipe's optimiser and schedule are in torch, for each side of the network."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedoptima.config.schema import OptimizerConfig, ScheduleConfig


def build_optimizer(config: OptimizerConfig, parameters: list[Tensor]) -> torch.optim.Optimizer:
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            config.learning_rate,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(parameters, config.learning_rate, weight_decay=config.weight_decay)


def rate_factor(schedule: ScheduleConfig, progress: float) -> float:
    """What the learning rate is multiplied by, when ``progress`` of the run's budget is spent.

    It follows global progress, not a node's own steps, so that all nodes cool down together
    however unequal their speeds are.
    """
    if progress < schedule.warmup:
        # Not from zero: the first updates would be for nothing.
        return max(progress / schedule.warmup, 0.01)
    if schedule.kind == "constant":
        return 1.0
    rest = (progress - schedule.warmup) / (1 - schedule.warmup)
    falling = (1 + math.cos(math.pi * rest)) / 2 if schedule.kind == "cosine" else 1 - rest
    return schedule.floor + (1 - schedule.floor) * falling
