"""The Pre-processor's plan (section 3.2), made from the costs of a model's blocks.

Pure arithmetic: the costs are measured with torch (`preprocess.sides`) or, for a model and data of
our own, stored with the package (`preprocess.stored_costs`). The plan itself is plain data:
`core.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fedoptima.core.codecs import PLAIN, Codec, Codecs, bytes_saved
from fedoptima.core.cuts import best_option, options_of
from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import BlockProfile, Cut, Objective, Plan
from fedoptima.preprocess.pipeline import batch_times, parts_for, pipelined_split
from fedoptima.preprocess.split import DeviceSpeed, Entry, Profile, choose_split
from fedoptima.tasks.output import Output


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
    train_every: int = 1  # of so many batches a device trains on one at least
    micro_batches: int = 1  # parts of a mini-batch in flight; 0: as many as the rule says
    own_split: bool = False  # chosen together with the parts, whatever ``split`` says
    server_flops_per_second: float | None = None  # None: not known, its work takes no time
    codecs: Codecs = PLAIN
    per_device: bool = False  # each device has a cut of its own
    batch_seconds: float = 0.0  # the latest with which it takes no longer; 0: the best for it

    @property
    def output(self) -> Output:
        """What the model and the auxiliary network predict."""
        return Output(self.classes, self.places)


class Costs(Protocol):
    """What the parts of a model cost."""

    def blocks(self) -> Profile: ...
    def auxiliary(self, split: int) -> BlockProfile | None:
        """Of the auxiliary network behind that many blocks, if the device has one."""

    def entry(self, split: int) -> Entry:
        """What the gradient of its input costs a server that begins behind that many blocks."""

    def after(self, module: str) -> int:
        """How many blocks come before a cut behind a module."""

    def trains_behind(self, split: int) -> bool:
        """Is there anything to train behind that many blocks?"""


@dataclass(frozen=True, slots=True)
class _OfThisRun:
    """The costs as this run has them: what crosses a cut or is uploaded as large as it is sent.

    A plan is part of what devices are sent, and says no more than the run needs.
    """

    costs: Costs
    settings: PlanSettings

    def blocks(self) -> Profile:
        return Profile(tuple(map(self._of, self.costs.blocks().blocks)))

    def auxiliary(self, split: int) -> BlockProfile | None:
        found = self.costs.auxiliary(split)
        return None if found is None else self._of(found)

    def entry(self, split: int) -> Entry:
        found = self.costs.entry(split)
        return found if self.settings.traffic else replace(found, moved=0)

    def after(self, module: str) -> int:
        return self.costs.after(module)

    def trains_behind(self, split: int) -> bool:
        return self.costs.trains_behind(split)

    def _of(self, block: BlockProfile) -> BlockProfile:
        block = replace(block, entry_flops=0.0, entry_moved=0)
        if not self.settings.traffic:
            block = replace(block, forward_moved=0, backward_moved=0, saved_bytes=0)
        return _as_sent(block, self.settings.codecs)


def _as_sent(block: BlockProfile, codecs: Codecs) -> BlockProfile:
    def saved(codec: Codec) -> int:
        return sum(bytes_saved(codec, numbers, 1) for _, numbers in block.cut_rows)

    smaller = bytes_saved(codecs.updates, *block.weight_rows) if block.weight_rows else 0
    return replace(
        block,
        output_bytes=block.output_bytes - saved(codecs.activations),
        gradient_bytes=block.gradient_bytes - saved(codecs.gradients),
        update_bytes=block.parameter_bytes - smaller if smaller else 0,
        cut_rows=block.cut_rows if codecs.at_the_cut else (),
        weight_rows=block.weight_rows if smaller else (),
    )


def make_plan(costs: Costs, devices: Sequence[DeviceSpeed], settings: PlanSettings) -> Plan:
    """Choose the split, add the auxiliary network."""
    costs = _OfThisRun(costs, settings)
    profile, codecs = costs.blocks(), settings.codecs
    if settings.training is ServerTraining.NONE:
        return Plan(
            *(profile.blocks, len(profile.blocks), "none", None, settings.objective, ()),
            codecs=codecs,
        )
    split = _own_split(profile, devices, settings) or settings.split
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
        train_every=settings.train_every,
        split=split,
    )
    plan = Plan(
        profile.blocks,
        choice.split,
        settings.auxiliary,
        auxiliary.get(choice.split) or costs.auxiliary(choice.split),
        settings.objective,
        choice.table,
        settings.micro_batches or _micro_batches(profile, choice.split, devices, settings),
        codecs,
    )
    if settings.per_device:
        plan = _with_cuts(plan, costs, devices, settings)
    return _with_entries(plan, costs) if plan.auxiliary_profile else plan


def _with_entries(plan: Plan, costs: Costs) -> Plan:
    """Devices with a loss of their own are sent no gradients, so the server computes none."""
    blocks = list(plan.blocks)
    for split in {plan.split, *(cut.split for cut in plan.cuts)}:
        entry = costs.entry(split)
        blocks[split] = replace(blocks[split], entry_flops=entry.flops, entry_moved=entry.moved)
    return replace(plan, blocks=tuple(blocks))


def _with_cuts(
    plan: Plan, costs: Costs, devices: Sequence[DeviceSpeed], settings: PlanSettings
) -> Plan:
    """With the cuts that devices may have: from the first one that is best for a device on, those
    that are best for some device or might become so when its link or speed changes. Where the
    server is to have less to do, that is any later one.

    Behind each the server has something to train; a model of which that is true nowhere is refused
    by the server, as it is with one cut.
    """
    table = [row for row in plan.table if costs.trains_behind(row.split)] or plan.table
    flops = [row.device_flops / settings.batch_size for row in table]
    nbytes = [row.activation_bytes for row in table]

    def pays(place: int) -> bool:
        """Does no other cut have less work and less to send? Of equal ones the first counts."""
        pairs = list(zip(flops, nbytes, strict=True))
        own = pairs[place]
        return not any(
            other[0] <= own[0] and other[1] <= own[1] and (other != own or index < place)
            for index, other in enumerate(pairs)
            if index != place
        )

    within = settings.batch_seconds / settings.batch_size
    places = [place for place in range(len(table)) if within or pays(place)]
    cuts = tuple(Cut(place + 1, flops[place], costs.auxiliary(place + 1)) for place in places)
    plan = replace(plan, cuts=cuts, sample_seconds=within)
    options = options_of(plan)
    best = [best_option(options, d.flops_per_second, d.bytes_per_second) for d in devices]
    first = min(option.split for option in best)
    cuts = tuple(cut for cut in cuts if cut.split >= first)
    return replace(plan, split=first, auxiliary_profile=cuts[0].auxiliary_profile, cuts=cuts)


def _own_split(
    profile: Profile, devices: Sequence[DeviceSpeed], settings: PlanSettings
) -> int | None:
    """The cut that a pipelined method chooses for itself, whatever ``split`` says."""
    if not settings.own_split or len(profile.blocks) < 2:
        return None
    return pipelined_split(
        profile,
        devices,
        batch_size=settings.batch_size,
        server_flops_per_second=settings.server_flops_per_second,
        parts=settings.micro_batches,
    )


def _micro_batches(
    profile: Profile, split: int, devices: Sequence[DeviceSpeed], settings: PlanSettings
) -> int:
    times = [
        batch_times(
            profile,
            split,
            device,
            batch_size=settings.batch_size,
            server_flops_per_second=settings.server_flops_per_second,
        )
        for device in devices
    ]
    return parts_for(times, settings.batch_size)
