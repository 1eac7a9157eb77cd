"""Optimisers by name, and the course of the learning rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedoptima.config.training import OptimizerConfig, ScheduleConfig
from fedoptima.core.errors import ConfigError

# What an optimiser keeps for each parameter.
STATE = {
    "sgd": ("momentum_buffer",),
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
}


BuildOptimizer = Callable[..., object]  # (parameters, lr=..., **options)
Factor = Callable[[float], float]  # the share of the budget that is spent -> times the rate


@dataclass(frozen=True)
class LearnerCode:
    """What a recipe names, or a user gives, instead of what is here."""

    build: BuildOptimizer | None = None
    factor: Factor | None = None


OURS = LearnerCode()


def build_optimizer(
    config: OptimizerConfig,
    parameters: list[Tensor],
    *,
    fused: bool = False,
    build: BuildOptimizer | None = None,
) -> torch.optim.Optimizer:
    """``build``: of the user; it is one of the three known names otherwise."""
    if build is not None:
        return _built(build, config, parameters)
    try:
        return _ours(config, parameters, fused=fused)
    except TypeError as error:
        raise ConfigError(f"optimiser {config.name!r}: {error}") from error


def plain_step(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """One of ours takes its step, without the hooks and the profiling that torch puts around it:
    nobody uses them here, and they take longer than the step of a small network. SGD on a CPU has
    a shorter way as well."""
    step = inspect.unwrap(type(optimizer).step)
    simple = _is_simple(optimizer)

    def take() -> None:
        if not (simple and _descended(optimizer)):
            with torch.no_grad():
                step(optimizer)

    return take


def _is_simple(optimizer: torch.optim.Optimizer) -> bool:
    """SGD on a CPU, as a recipe can describe it."""
    if not isinstance(optimizer, torch.optim.SGD) or len(optimizer.param_groups) > 1:
        return False
    [group] = optimizer.param_groups
    asked = any(group[name] is not None for name in ("foreach", "fused"))
    other = group["maximize"] or group["differentiable"]
    return not (asked or other) and _is_fast_on_cpu(group["params"])


def _is_fast_on_cpu(parameters: Sequence[Tensor]) -> bool:
    """May torch's fused kernels take their steps? They read and write each number once: SGD takes
    half the time, Adam a quarter to a third (`python -m benchmarks.run optimizer_steps`).

    They pair the numbers of tensors by their place in memory, so all have to be contiguous; so are
    their gradients then, by autograd. Half precision they get wrong (torch 2.13: SGD without
    momentum).
    """
    return all(
        parameter.device.type == "cpu"
        and parameter.dtype in (torch.float32, torch.float64)
        and parameter.is_contiguous()
        for parameter in parameters
    )


def _descended(optimizer: torch.optim.Optimizer) -> bool:
    """One step of torch's fused kernel.

    False: it could not be taken, and nothing was done: a gradient is sparse, or some weights have
    no momentum yet and others do.
    """
    [group] = optimizer.param_groups
    momentum, state = group["momentum"], optimizer.state
    weights: list[Tensor] = []
    change: list[Tensor] = []
    held: list[Tensor] = []
    for parameter in group["params"]:
        if (gradient := parameter.grad) is None:
            continue
        if gradient.is_sparse:
            return False
        weights.append(parameter)
        change.append(gradient)
        if momentum and parameter in state:
            held.append(state[parameter]["momentum_buffer"])
    first = bool(momentum) and not held
    if first:
        held = [torch.empty_like(gradient) for gradient in change]
    elif momentum and len(held) < len(weights):
        return False
    if not weights:
        return True
    with torch.no_grad():
        torch._fused_sgd_(
            *(weights, change, held),
            weight_decay=group["weight_decay"],
            momentum=momentum,
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=False,
            is_first_step=first,
        )
    if first:
        for parameter, own in zip(weights, held, strict=True):
            state[parameter]["momentum_buffer"] = own
    return True


def _ours(
    config: OptimizerConfig, parameters: list[Tensor], *, fused: bool
) -> torch.optim.Optimizer:
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            config.learning_rate,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            **{"fused": fused or None, **config.options},
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    rate, decay = config.learning_rate, config.weight_decay
    on_gpu = parameters[0].is_cuda  # it counts its steps there then
    asked = config.options.keys() & {"foreach", "fused", "differentiable", "capturable"}
    fused = fused or (not asked and _is_fast_on_cpu(parameters))
    how: dict[str, Any] = {"fused": fused or None, "capturable": fused and on_gpu}
    return kind(parameters, rate, weight_decay=decay, **{**how, **config.options})


def _built(
    build: BuildOptimizer, config: OptimizerConfig, parameters: list[Tensor]
) -> torch.optim.Optimizer:
    options = dict(config.options)
    if config.weight_decay:
        options.setdefault("weight_decay", config.weight_decay)
    called = f"optimiser {config.name!r}"
    try:
        made = build(parameters, lr=config.learning_rate, **options)
    except Exception as error:  # any error in a user's function concerns the user's code
        given = ", ".join(("lr", *options))
        raise ConfigError(
            f"{called}: cannot be made with the parameters and {given} "
            f"({type(error).__name__}: {error})"
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(
            f"{called}: returned {type(made).__name__}; it must return a torch.optim.Optimizer"
        )
    if isinstance(made, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise ConfigError(
            f"{called}: {type(made).__name__} needs more than a gradient for each step; choose "
            "another one"
        )
    return made


def known_to_torch(name: str) -> BuildOptimizer | None:
    """A class of torch.optim by its name, whatever the case."""
    base = torch.optim.Optimizer
    classes = (found for found in vars(torch.optim).values() if isinstance(found, type))
    named = (found for found in classes if found.__name__.lower() == name.lower())
    return next((found for found in named if issubclass(found, base) and found is not base), None)


def own_factor(factor: Factor, progress: float, key: str) -> float:
    try:
        value = float(factor(progress))
    except Exception as error:  # any error in a user's function concerns the user's code
        raise ConfigError(
            f"{key}: fails at {progress:g} ({type(error).__name__}: {error})"
        ) from error
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(
            f"{key}: gives {value:g} at {progress:g} of the budget; it must give a factor of at "
            "least 0, such as 1.0"
        )
    return value


def rate_factor(schedule: ScheduleConfig, progress: float, factor: Factor | None = None) -> float:
    """What the learning rate is multiplied by, when ``progress`` of the run's budget is spent.

    It follows global progress, not a node's own steps, so that all nodes have the same rate
    however unequal their speeds are.
    """
    if factor is not None:
        return own_factor(factor, progress, f"the schedule {schedule.kind!r}")
    if progress < schedule.warmup:
        # Not from zero: the first updates would have no effect.
        return max(progress / schedule.warmup, 0.01)
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "step":
        falls = sum(progress >= share for share in schedule.steps)
        return max(schedule.factor**falls, schedule.floor)
    rest = (progress - schedule.warmup) / (1 - schedule.warmup)
    falling = (1 + math.cos(math.pi * rest)) / 2 if schedule.kind == "cosine" else 1 - rest
    return schedule.floor + (1 - schedule.floor) * falling
