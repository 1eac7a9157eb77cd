"""Optimisers by name, and the course of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedoptima.config.training import OptimizerConfig, ScheduleConfig
from fedoptima.engine.payloads import Tensors

_PREFIX = "optimizer."  # of the names of its tensors in a checkpoint

# What an optimiser keeps for each parameter.
STATE = {
    "sgd": ("momentum_buffer",),
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
}


def build_optimizer(
    config: OptimizerConfig, parameters: list[Tensor], *, fused: bool = False
) -> torch.optim.Optimizer:
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            config.learning_rate,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            fused=fused or None,
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    rate, decay = config.learning_rate, config.weight_decay
    on_gpu = parameters[0].is_cuda  # it counts its steps there then
    return kind(
        parameters, rate, weight_decay=decay, fused=fused or None, capturable=fused and on_gpu
    )


def rate_factor(schedule: ScheduleConfig, progress: float) -> float:
    """What the learning rate is multiplied by, when ``progress`` of the run's budget is spent.

    It follows global progress, not a node's own steps, so that all nodes have the same rate
    however unequal their speeds are.
    """
    if progress < schedule.warmup:
        # Not from zero: the first updates would have no effect.
        return max(progress / schedule.warmup, 0.01)
    if schedule.kind == "constant":
        return 1.0
    rest = (progress - schedule.warmup) / (1 - schedule.warmup)
    falling = (1 + math.cos(math.pi * rest)) / 2 if schedule.kind == "cosine" else 1 - rest
    return schedule.floor + (1 - schedule.floor) * falling


# ---- checkpoint ----------------------------------------------------------------------------------


def entries_to_save(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]
) -> tuple[dict[str, object], Tensors]:
    """Its state: plain values, and the tensors themselves."""
    kinds: dict[str, object] = {}
    tensors: Tensors = {}
    for index, parameter in enumerate(parameters):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{_PREFIX}{index}.{key}"] = value
            else:
                kinds[f"{index}.{key}"] = value
    return kinds, tensors


def saved_entries(
    kinds: Mapping[str, object], tensors: Mapping[str, Tensor], *, fused: bool
) -> Iterator[tuple[int, str, object]]:
    """The number of a parameter, the name of a value, and the value."""
    entries = dict(kinds)
    for name, tensor in tensors.items():
        if name.startswith(_PREFIX):
            # Adam counts its steps on the CPU, so that no step waits for a GPU; a fused one
            # on the GPU.
            counts = name.endswith(".step") and not fused
            entries[name.removeprefix(_PREFIX)] = tensor.cpu() if counts else tensor
    for place, value in entries.items():
        number, key = place.split(".", 1)
        yield int(number), key, value
