"""The Pre-processor's plan (section 3.2), made from the costs of a model's blocks.

Pure arithmetic: the costs are measured with torch (`preprocess.sides`) or, for a model and data of
our own, stored with the package (`preprocess.stored_costs`). The plan itself is plain data:
`core.plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import BlockProfile, Objective, Plan
from fedoptima.preprocess.split import DeviceSpeed, Profile, choose_split
from fedoptima.tasks.output import Output

MOST_MICRO_BATCHES = 4


@dataclass(frozen=True, slots=True)
class PlanSettings:
    training: ServerTraining
    batch_size: int
    classes: int  # or numbers that are predicted
    seed: int
    auxiliary: str | int = "none"
    auxiliary_code: Callable[..., object] | None = None  # the user's own, of the name ``auxiliary``
    split: int | None = None  # blocks on the device; None: as ``after`` or the objective says
    after: str | None = None  # a module that the user has named to be the last on the device
    objective: Objective = "paper"
    places: tuple[int, ...] = ()  # of a sample that is predicted place by place (`Output`)
    traffic: bool = False  # the plan says what moves in memory: a node of the fleet pays for it

    @property
    def output(self) -> Output:
        """What the model and the auxiliary network predict."""
        return Output(self.classes, self.places)


class Costs(Protocol):
    """What the parts of a model cost."""

    def blocks(self) -> Profile: ...
    def auxiliary(self, split: int) -> BlockProfile | None:
        """Of the auxiliary network behind that many blocks, if the device has one."""

    def after(self, module: str) -> int:
        """How many blocks come before a cut behind a module."""


@dataclass(frozen=True, slots=True)
class _WithoutTraffic:
    """A plan is part of what devices are sent, and says no more than the run needs."""

    costs: Costs

    def blocks(self) -> Profile:
        return Profile(tuple(map(_without_traffic, self.costs.blocks().blocks)))

    def auxiliary(self, split: int) -> BlockProfile | None:
        found = self.costs.auxiliary(split)
        return None if found is None else _without_traffic(found)

    def after(self, module: str) -> int:
        return self.costs.after(module)


def _without_traffic(block: BlockProfile) -> BlockProfile:
    return replace(block, forward_moved=0, backward_moved=0, saved_bytes=0)


def make_plan(costs: Costs, devices: Sequence[DeviceSpeed], settings: PlanSettings) -> Plan:
    """Choose the split, add the auxiliary network."""
    if not settings.traffic:
        costs = _WithoutTraffic(costs)
    profile = costs.blocks()
    if settings.training is ServerTraining.NONE:
        return Plan(profile.blocks, len(profile.blocks), "none", None, settings.objective, ())
    split = settings.split
    if split is None and settings.after is not None:
        split = costs.after(settings.after)
    auxiliary = {}
    if settings.objective == "measured" and settings.auxiliary != "none":
        auxiliary = {split: costs.auxiliary(split) for split in range(1, len(profile.blocks))}
    choice = choose_split(
        profile,
        devices,
        batch_size=settings.batch_size,
        objective=settings.objective,
        auxiliary={k: v for k, v in auxiliary.items() if v},
        split=split,
    )
    return Plan(
        profile.blocks,
        choice.split,
        settings.auxiliary,
        auxiliary.get(choice.split) or costs.auxiliary(choice.split),
        settings.objective,
        choice.table,
        _micro_batches(profile, choice.split, devices, settings.batch_size),
    )


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
