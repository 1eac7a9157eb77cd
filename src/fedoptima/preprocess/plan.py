"""The Pre-processor (section 3.2): makes the plan, and divides the network as it says.

The plan itself is plain data: `core.plan`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn

from fedoptima.core.errors import ConfigError
from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import BlockProfile, Objective, Plan
from fedoptima.core.seeding import derive
from fedoptima.preprocess.auxiliary import build_auxiliary
from fedoptima.preprocess.cuts import Cuttable, cuttable
from fedoptima.preprocess.profile import Profile, profile, profile_module
from fedoptima.preprocess.split import DeviceSpeed, choose_split

MOST_MICRO_BATCHES = 4


@dataclass(frozen=True, slots=True)
class PlanSettings:
    training: ServerTraining
    batch_size: int
    classes: int
    seed: int
    auxiliary: str | int = "none"
    split: int | None = None  # None: by the objective
    objective: Objective = "paper"


@dataclass(frozen=True)
class Sides:
    """The network as the plan divides it; parameters are shared with the whole model."""

    device: nn.Module
    auxiliary: nn.Module | None
    server: nn.Module | None
    activation: object  # an example of what crosses the cut


def make_plan(
    model: nn.Module, example: object, devices: Sequence[DeviceSpeed], settings: PlanSettings
) -> Plan:
    """Profile, choose the split, add the auxiliary network. ``example``: a batch of input."""
    if settings.training is ServerTraining.NONE:
        blocks = _profile_whole(model, example)
        return Plan(blocks.blocks, len(blocks.blocks), "none", None, settings.objective, ())
    cuts = cuttable(model, example)
    costs = profile(cuts, example)
    auxiliary = {}
    if settings.objective == "measured" and settings.auxiliary != "none":
        for split in range(1, len(costs.blocks)):
            auxiliary[split] = _auxiliary_profile(cuts, example, split, settings)
    choice = choose_split(
        costs,
        devices,
        batch_size=settings.batch_size,
        objective=settings.objective,
        auxiliary={k: v for k, v in auxiliary.items() if v},
        split=settings.split,
    )
    extra = auxiliary.get(choice.split) or _auxiliary_profile(cuts, example, choice.split, settings)
    return Plan(
        costs.blocks,
        choice.split,
        settings.auxiliary,
        extra,
        settings.objective,
        choice.table,
        _micro_batches(costs, choice.split, devices, settings.batch_size),
    )


def build_sides(model: nn.Module, example: object, plan: Plan, settings: PlanSettings) -> Sides:
    """Both sides of ``model`` as planned; the auxiliary network's weights come from the seed."""
    if plan.split == len(plan.blocks):
        return Sides(model, None, None, None)
    cuts = cuttable(model, example)
    device, server = cuts.part(0, plan.split), cuts.part(plan.split, len(plan.blocks))
    clash = [name for name in device.state_dict() if name.startswith("aux.")]
    if clash:
        raise ConfigError(
            f"the model calls a tensor {clash[0]!r}, but names that begin with 'aux.' belong to "
            "the auxiliary network; rename that part of the model"
        )
    activation = _activation(device, example)
    auxiliary = _build_auxiliary(device, server, activation, plan.auxiliary, settings)
    return Sides(device, auxiliary, server, activation)


def _micro_batches(
    costs: Profile, split: int, devices: Sequence[DeviceSpeed], batch_size: int
) -> int:
    """How many parts keep a device at its forward passes while the first part is on its way.

    The first gradient is back after a part's activations went up and its gradients came down;
    in that time the device works on n - 1 further parts: (n - 1) forward >= up + down.
    Where the link is slower than the device nothing hides it, and small parts are inefficient, so
    there is a bound. The server's time is left out: it is the strong side.
    """
    forward = sum(block.forward_flops for block in costs.blocks[:split]) * batch_size
    moved = (
        costs.blocks[split - 1].output_bytes + costs.blocks[split - 1].gradient_bytes
    ) * batch_size
    if not forward:  # nothing to do on the device that a transfer could hide behind
        return max(1, min(MOST_MICRO_BATCHES, batch_size))
    needed = max(
        1 + moved / device.bytes_per_second / (forward / device.flops_per_second)
        for device in devices
    )
    return max(1, min(math.ceil(needed), MOST_MICRO_BATCHES, batch_size))


def _profile_whole(model: nn.Module, example: object) -> Profile:
    try:
        return profile(cuttable(model, example), example)
    except ConfigError:  # a model that cannot be cut can still be trained whole
        return Profile((profile_module(model, example, name="model"),))


def _auxiliary_profile(
    cuts: Cuttable, example: object, split: int, settings: PlanSettings
) -> BlockProfile | None:
    device, server = cuts.part(0, split), cuts.part(split, len(cuts.names))
    activation = _activation(device, example)
    auxiliary = _build_auxiliary(device, server, activation, settings.auxiliary, settings)
    return None if auxiliary is None else profile_module(auxiliary, activation)


def _build_auxiliary(
    device: nn.Module,
    server: nn.Module,
    activation: object,
    variant: str | int,
    settings: PlanSettings,
) -> nn.Module | None:
    most = sum(tensor.numel() for tensor in server.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(settings.seed, "auxiliary"))
        return build_auxiliary(
            device, activation, settings.classes, variant, server_parameters=most
        )


def _activation(device: nn.Module, example: object) -> object:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        output: object = deepcopy(device).eval()(example)
        return output
