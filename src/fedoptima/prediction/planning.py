"""What a run will be like, before it starts: what each side does, and what limits it.

A short dry simulation gives the figures; a second one, with a server that takes no time and a
credit for every device, shows what devices and uplinks could send. Both are bounded in events, so
that the answer takes seconds for any fleet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from torch import nn

from fedoptima.analysis.findings import AT_ITS_LIMIT
from fedoptima.analysis.formatting import counted, percent
from fedoptima.analysis.idle_time import UsageAccount
from fedoptima.analysis.memory import memory_of_copies, memory_of_shared
from fedoptima.analysis.pacing import DevicePace, PaceAccount
from fedoptima.config.schema import Recipe
from fedoptima.core.flow import CappedFlow
from fedoptima.core.plan import Candidate, Objective, Plan
from fedoptima.core.reuse import LeastUsed
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.data.dataset import Dataset
from fedoptima.data.layouts import ReadingProgress
from fedoptima.display.views import run_view
from fedoptima.display.wording import speaks_python
from fedoptima.experiments.given import Given
from fedoptima.experiments.parts import Options, recipe_from
from fedoptima.experiments.planned_form import Tried, is_planned, plan_form, steady
from fedoptima.experiments.setup import Experiment, assemble, build_form, prepare
from fedoptima.methods.registry import Builder
from fedoptima.prediction.plan_warnings import plan_warnings
from fedoptima.preprocess.auxiliary import pooling_of
from fedoptima.sim.dry import Sizes
from fedoptima.tasks.task import Loss, Task

Bottleneck = Literal["devices", "uplink", "server", "omega"]
Paces = Mapping[NodeId, DevicePace]

EVENTS = 100_000  # of one simulation, at most
_AS_MUCH = 0.98  # of what is possible: below this, something limits it
_PATIENCE = 0.5  # of the credit timeout: a turnaround above this share is too near to it
_HOURS = 1e6  # a simulation ends before that
_NEARLY_IDLE = 0.01  # share of the server's time
_NO_TIME = 1e30  # FLOP/s


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """The paper's formulas (section 2.2), for server sides of the model and activation batches."""

    model: int  # bytes
    activation: int  # bytes of one batch
    cap: int | None  # omega; None: every device has at most one batch there
    shared: int  # model + omega * activation
    copies: int  # (K + 1) * model + K * activation, where every device has a copy of the model
    kept: int = 0  # beside it, at most: batches that are kept to be used again (method.reuse)


@dataclass(frozen=True, slots=True)
class Prediction:
    plan: Plan
    candidates: Mapping[Objective, tuple[Candidate, ...]]  # empty where nothing is split
    devices: Paces
    device_samples_per_second: float  # the whole fleet, that it trains on
    forwarded_samples_per_second: float  # and that it sends without training on them
    useful_samples_per_second: float  # through the whole network; reused ones do not count
    up_per_second: float  # bytes from all devices
    down_per_second: float  # bytes to them
    batches_per_second: float  # of activations, that the server trains on
    offered: float  # that devices and uplinks could send
    server_busy: float  # share of its time, without reused batches
    bottleneck: Bottleneck
    explanation: str
    memory: ServerMemory | None  # None where the server holds no activations
    auxiliary_pooling: int  # side of the squares its features are averaged over; 1: none
    warnings: tuple[str, ...]
    server_reused: float = 0.0  # share of the server's time, with reused batches
    form: Tried | None = None  # that FedOptima+ chose
    rejected: tuple[Tried, ...] = ()  # the best first
    cuts: Mapping[NodeId, int] = field(default_factory=dict)  # of devices that have their own

    @property
    def server_capacity(self) -> float | None:
        """Batches per second of a server that is always busy; None where it trains nothing."""
        return self.batches_per_second / self.server_busy if self.batches_per_second else None

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "server_capacity": self.server_capacity}, indent=1)


@speaks_python()
def plan(
    recipe: Recipe | str | Path | None = None,
    *,
    model: nn.Module | str | Options | None = None,
    train: object = None,
    test: object = None,
    data: Dataset | str | Options | None = None,
    fleet: str | Options | None = None,
    method: Builder | str | Options | None = None,
    training: Options | None = None,
    split: Options | None = None,
    seed: int | None = None,
    task: Task | str | Options | None = None,
    loss: Loss | None = None,
    progress: bool | None = None,
    reading: ReadingProgress | None = None,
) -> Prediction:
    """Predict a run: its split, memory, throughput and bottleneck.

    Nothing is trained; a built-in data set need not be on disk.

    Args:
        recipe: A recipe file, or a `Recipe`.
        model: As in `simulate`.
        train: As in `simulate`.
        test: As in `simulate`.
        data: As in `simulate`.
        fleet: As in `simulate`.
        method: As in `simulate`.
        training: As in `simulate`.
        split: As in `simulate`.
        seed: As in `simulate`.
        task: As in `simulate`.
        loss: As in `simulate`.
        progress: Show what is read, as in `simulate`.
        reading: As in `simulate`.

    Returns:
        The split, what each other split would cost, each device's pace, and what limits the run.

    Raises:
        ConfigError: An argument cannot work; the message says which, and how to fix it.

    Example:
        ```python
        prediction = fedoptima.plan("recipes/demo_digits.toml")
        print(prediction.bottleneck, prediction.server_busy)
        ```
    """
    whole, given = recipe_from(
        recipe,
        "plan()",
        model=model,
        train=train,
        test=test,
        data=data,
        fleet=fleet,
        method=method,
        training=training,
        split=split,
        seed=seed,
        task=task,
        loss=loss,
        epochs=1.0 if recipe is None else None,  # when a run ends is not asked here
    )
    with run_view(whole, progress) as view:
        return predict_recipe(whole, given, reading or view.reading)[1]


def predict_recipe(
    recipe: Recipe, given: Given, reading: ReadingProgress
) -> tuple[Experiment, Prediction]:
    """With the form that FedOptima+ chooses, and what it rejects."""
    if is_planned(recipe):
        experiment = prepare(recipe, given, reading, dry=True)
        return experiment, predict(experiment)
    found = plan_form(recipe, partial(build_form, given))
    experiment = prepare(found.recipe, given, reading, dry=True)
    others = (one for one in found.tried if one is not found.chosen)
    ranked = tuple(sorted(others, key=lambda one: -one.useful))
    return experiment, replace(predict(experiment), form=found.chosen, rejected=ranked)


def predict(experiment: Experiment) -> Prediction:
    plan = experiment.plan()
    lasts = experiment.recipe.model_copy(update={"stop": StopRule(hours=_HOURS)})
    lasting = steady(replace(experiment, recipe=lasts))
    seen = _DryRun(lasting)
    unlimited = _DryRun(_unlimited(lasting)) if plan.server_blocks else seen
    bottleneck = _bottleneck(experiment, seen, unlimited)
    return Prediction(
        plan=plan,
        candidates=_candidates(experiment, plan),
        devices=seen.paces,
        device_samples_per_second=sum(p.samples_per_second for p in seen.paces.values()),
        forwarded_samples_per_second=sum(p.forwarded_per_second for p in seen.paces.values()),
        useful_samples_per_second=_useful(experiment, seen.paces),
        up_per_second=sum(p.up_per_second for p in seen.paces.values()),
        down_per_second=sum(p.down_per_second for p in seen.paces.values()),
        batches_per_second=seen.batches_per_second,
        offered=unlimited.batches_per_second,
        server_busy=seen.usage[SERVER].utilisation,
        server_reused=seen.usage[SERVER].reused_share,
        bottleneck=bottleneck,
        explanation=_explain(experiment, bottleneck, seen, unlimited),
        memory=_memory(experiment, plan),
        cuts=experiment.cuts(plan),
        auxiliary_pooling=pooling_of(experiment.workload.sides(plan).auxiliary),
        warnings=(
            *_warnings(experiment, seen),
            *_idle_server(plan, seen),
            *plan_warnings(plan),
        ),
    )


def _useful(experiment: Experiment, paces: Paces) -> float:
    """Where devices have a loss of their own, only what the server trains on saw all blocks."""
    if experiment.method.program.kind != "auxiliary":
        return sum(pace.samples_per_second for pace in paces.values())
    batches = experiment.batches
    return sum(pace.batches_per_second * batches[device] for device, pace in paces.items())


class _DryRun:
    """Until every device has done a few rounds."""

    def __init__(self, experiment: Experiment) -> None:
        pace, usage = PaceAccount(experiment.batches), UsageAccount()
        simulation = assemble(experiment, [pace.observe, usage.observe], dry=True).simulation
        simulation.run(pause=lambda: pace.settled or simulation.events >= EVENTS)
        self.settled = pace.settled
        self.paces: Paces = pace.paces()
        self.batches_per_second = sum(p.batches_per_second for p in self.paces.values())
        self.usage = usage.usage()

        self.uplink_bound = 0  # devices that compute activations faster than they send them
        for device, batch in experiment.batches.items():
            done = self.paces[device]
            compute = self.usage[device].utilisation * batch
            self.uplink_bound += done.transfer * done.processed_per_second > compute


def _unlimited(experiment: Experiment) -> Experiment:
    """Neither the server nor the cap holds a device up."""
    server = replace(
        experiment.fleet.server, flops_per_second=_NO_TIME, seconds={}, memory=None, overhead=0.0
    )
    method, devices = experiment.method, len(experiment.fleet.devices)
    if method.flow().cap is not None:
        method = replace(method, flow=lambda: CappedFlow(devices))
    return replace(experiment, fleet=replace(experiment.fleet, server=server), method=method)


def _bottleneck(experiment: Experiment, seen: _DryRun, unlimited: _DryRun) -> Bottleneck:
    if seen.batches_per_second < _AS_MUCH * unlimited.batches_per_second:
        if seen.usage[SERVER].utilisation >= AT_ITS_LIMIT:
            return "server"
        cap = experiment.method.flow().cap
        if cap is not None and cap < len(seen.paces):
            return "omega"
    return "uplink" if 2 * unlimited.uplink_bound > len(seen.paces) else "devices"


def _explain(
    experiment: Experiment, bottleneck: Bottleneck, seen: _DryRun, unlimited: _DryRun
) -> str:
    slowest = max(seen.paces, key=lambda device: seen.paces[device].iteration)
    count = len(seen.paces)
    if experiment.method.aggregation().closes_round:
        return f"every round waits for the slowest device, {slowest}"
    match bottleneck:
        case "server":
            return "the server trains on fewer activations than the devices can send"
        case "omega":
            return (
                f"the activation cap is below the number of devices, {count}, so they wait "
                "for credits; raise method.activation_cap"
            )
        case "uplink":
            bound = unlimited.uplink_bound
            return f"{bound} of {count} devices compute activations faster than they can send"
    if seen.batches_per_second:
        return "the server could train on more activations than the devices compute"
    return f"the devices' own speed; {slowest} is the slowest"


def _candidates(experiment: Experiment, plan: Plan) -> dict[Objective, tuple[Candidate, ...]]:
    """The table of either objective: they differ in what they count as a device's work."""
    if not plan.table:
        return {}
    tables = {plan.objective: plan.table}
    for objective in get_args(Objective):
        if objective not in tables:
            planning = replace(experiment.workload.planning, objective=objective)
            other = replace(experiment, workload=replace(experiment.workload, planning=planning))
            tables[objective] = other.plan().table
    return tables


def _memory(experiment: Experiment, plan: Plan) -> ServerMemory | None:
    if not plan.server_blocks:
        return None
    cap, devices = experiment.method.flow().cap, len(experiment.fleet.devices)
    model, reuse = plan.server_bytes, experiment.method.reuse()
    activation = Sizes(plan).activation * experiment.recipe.training.batch_size
    return ServerMemory(
        model=model,
        activation=activation,
        cap=cap,
        shared=memory_of_shared(model, activation, cap or devices),
        copies=memory_of_copies(model, activation, devices),
        kept=reuse.rule.batches * activation if isinstance(reuse, LeastUsed) else 0,
    )


def _warnings(experiment: Experiment, seen: _DryRun) -> Iterator[str]:
    for device, why in experiment.unusual.items():
        yield f"the split is not planned for {device}: {why}"
    slowest = max(seen.paces, key=lambda device: seen.paces[device].turnaround)
    turnaround, timeout = seen.paces[slowest].turnaround, experiment.method.flow().timeout
    if timeout is not None and turnaround > _PATIENCE * timeout:
        yield (
            f"{slowest} answers a turn-on after {turnaround:.1f} s on average, and a credit "
            f"expires after method.credit_timeout = {timeout:g} s: its batches may come too "
            "late; raise method.credit_timeout"
        )
    if not seen.settled:
        short = f"a dry run of {EVENTS:,} events is short for this fleet"
        yield f"{short}: the figures are those of its beginning"
    fleet = experiment.fleet
    if fleet.churn is not None or fleet.changes or fleet.present_at_start < len(fleet.devices):
        yield (
            "devices that join late or leave and bandwidths that change are not in this prediction"
        )


def _idle_server(plan: Plan, seen: _DryRun) -> Iterator[str]:
    busy = seen.usage[SERVER].utilisation
    if plan.server_blocks and busy < _NEARLY_IDLE and not seen.usage[SERVER].reused:
        yield (
            f"the server is busy {percent(busy)} of its time: it is far faster than what "
            f"{counted(len(seen.paces), 'device')} can send; leave it more of the model (a smaller "
            "split.at), let more devices take part, let it train again on what it has "
            "(method.reuse), or use a slower server"
        )
