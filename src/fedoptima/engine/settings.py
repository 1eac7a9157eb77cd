"""How the optimisers work, for each side of the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    name: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9  # sgd
    nesterov: bool = False  # sgd
    weight_decay: float = 0.0
    clip_norm: float | None = None
    reset_on_load: bool = False  # default: momentum stays with its owner across a new model

    def build(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        if self.name == "sgd":
            return torch.optim.SGD(
                parameters,
                self.learning_rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
                weight_decay=self.weight_decay,
            )
        kind = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return kind(parameters, self.learning_rate, weight_decay=self.weight_decay)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate as a share of its setting, over the progress of the whole run.

    It follows global progress, not a node's own steps, so that all nodes cool down together
    however unequal their speeds are.
    """

    kind: Literal["constant", "cosine", "linear"] = "constant"
    warmup: float = 0.0  # share of the run in which the rate rises from zero
    floor: float = 0.0  # share of the rate that is left at the end

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < 1 or not 0 <= self.floor <= 1:
            raise ConfigError(
                f"schedule: warmup = {self.warmup} and floor = {self.floor} are shares: "
                "warmup from 0 to below 1, floor from 0 to 1"
            )

    def factor(self, progress: float) -> float:
        if progress < self.warmup:
            # Not from zero: the first updates would be for nothing.
            return max(progress / self.warmup, 0.01)
        if self.kind == "constant":
            return 1.0
        rest = (progress - self.warmup) / (1 - self.warmup)
        falling = (1 + math.cos(math.pi * rest)) / 2 if self.kind == "cosine" else 1 - rest
        return self.floor + (1 - self.floor) * falling
