"""What a run will be like, before it is run: what each side can do, and which one is the limit.

Pure arithmetic over the plan, the fleet and the method. Queues are counted only where they are all
that matters (a full server, a small cap); devices that leave and links that change are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from fedoptima.analysis.memory import memory_of_copies, memory_of_shared
from fedoptima.core.flow import CappedFlow
from fedoptima.core.plan import Candidate, Objective, Plan
from fedoptima.core.types import NodeId
from fedoptima.experiments.setup import Experiment
from fedoptima.prediction.pacing import DevicePace, Pacing
from fedoptima.preprocess.auxiliary import pooling_of

Bottleneck = Literal["devices", "uplink", "server", "omega"]
Paces = Mapping[NodeId, DevicePace]

_PATIENCE = 0.5  # of the credit timeout: a turnaround above this share is too near to it


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """The paper's formulas (section 2.2), for server sides of the model and activation batches."""

    model: int  # bytes
    activation: int  # bytes of one batch
    cap: int | None  # omega; None: every device has at most one batch there
    shared: int  # model + omega * activation
    copies: int  # (K + 1) * model + K * activation, where every device has a copy of the model


@dataclass(frozen=True, slots=True)
class Prediction:
    plan: Plan
    candidates: Mapping[Objective, tuple[Candidate, ...]]  # empty where nothing is split
    devices: Paces
    device_samples_per_second: float  # the whole fleet
    server_step: float  # seconds, one activation batch; 0 where the server trains nothing
    offered: float  # activation batches per second: devices and uplinks
    server_capacity: float | None
    cap_limit: float | None  # omega / turnaround; None: no cap, or a credit for every device
    batches_per_second: float  # the least of these
    bottleneck: Bottleneck
    explanation: str
    memory: ServerMemory | None  # None where the server holds no activations
    auxiliary_pooling: int  # side of the squares its features are averaged over; 1: none
    warnings: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def predict(experiment: Experiment) -> Prediction:
    plan, flow = experiment.plan(), experiment.method.flow()
    cap = flow if isinstance(flow, CappedFlow) else None
    pacing = Pacing(experiment, plan)
    paces: Paces = {device: pacing.pace(device) for device in experiment.fleet.devices}
    if pacing.barrier:
        paces = _in_step(paces)
    offered = sum(pace.batches_per_second for pace in paces.values())
    step = _mean_step(pacing, paces)
    capacity = _capacity(pacing, paces, step)
    limit = None if cap is None else _cap_limit(cap.cap, paces)
    rate = min(x for x in (offered, capacity, limit) if x is not None)
    samples = sum(pace.samples_per_second for pace in paces.values())
    if experiment.method.program.kind == "gradient" and offered:
        samples *= rate / offered  # a device waits for every gradient
    bottleneck = _bottleneck(paces, offered, capacity, rate)
    return Prediction(
        plan=plan,
        candidates=_candidates(experiment, plan),
        devices=paces,
        device_samples_per_second=samples,
        server_step=step,
        offered=offered,
        server_capacity=capacity,
        cap_limit=limit,
        batches_per_second=rate,
        bottleneck=bottleneck,
        explanation=_explain(bottleneck, paces, barrier=pacing.barrier, splits=bool(plan.table)),
        memory=_memory(experiment, plan, None if cap is None else cap.cap, pacing),
        auxiliary_pooling=pooling_of(experiment.task.sides(plan).auxiliary),
        warnings=(
            *_warnings(experiment, paces, None if cap is None else cap.timeout),
            *_auxiliary_warning(plan),
        ),
    )


def _in_step(paces: Paces) -> Paces:
    """Behind a barrier every device's round takes as long as the slowest one's."""
    longest = max(pace.round for pace in paces.values())
    return {
        device: replace(
            pace,
            samples_per_second=pace.samples_per_second * pace.round / longest,
            batches_per_second=pace.batches_per_second * pace.round / longest,
        )
        for device, pace in paces.items()
    }


def _mean_step(pacing: Pacing, paces: Paces) -> float:
    offered = sum(pace.batches_per_second for pace in paces.values())
    if not offered:
        return 0.0
    busy = sum(p.batches_per_second * pacing.server_step(device) for device, p in paces.items())
    return busy / offered


def _capacity(pacing: Pacing, paces: Paces, step: float) -> float | None:
    """Batches per second in the time that merging leaves."""
    if not step:
        return None
    rounds = [pace.round for pace in paces.values()]
    merges = 1 / max(rounds) if pacing.barrier else sum(1 / seconds for seconds in rounds)
    return max(0.0, 1 - merges * pacing.merge) / step


def _cap_limit(cap: int, paces: Paces) -> float | None:
    """Omega credits, each held for a turnaround and shared fairly: no device gets more than the
    common rate, and none more than it can use. With a credit for every device nobody waits."""
    if cap >= len(paces):
        return None

    def in_use(common: float) -> float:
        # A device that gets all it can use always has a credit in its hand.
        return sum(
            1.0 if p.batches_per_second <= common else min(1.0, common * p.turnaround)
            for p in paces.values()
        )

    low, high = 0.0, max(pace.batches_per_second for pace in paces.values())
    for _ in range(60):  # halving: the common rate at which every credit is in use
        middle = (low + high) / 2
        low, high = (middle, high) if in_use(middle) < cap else (low, middle)
    return sum(min(low, pace.batches_per_second) for pace in paces.values())


def _bottleneck(paces: Paces, offered: float, capacity: float | None, rate: float) -> Bottleneck:
    if rate < offered:
        return "server" if rate == capacity else "omega"
    bound = sum(pace.uplink_bound for pace in paces.values())
    return "uplink" if 2 * bound > len(paces) else "devices"


def _explain(bottleneck: Bottleneck, paces: Paces, *, barrier: bool, splits: bool) -> str:
    slowest = max(paces, key=lambda device: paces[device].round)
    bound = sum(pace.uplink_bound for pace in paces.values())
    if barrier:
        return f"every round waits for the slowest device, {slowest}"
    match bottleneck:
        case "server":
            return "the server trains on fewer activations than the devices can send"
        case "omega":
            return (
                f"the activation cap is below the number of devices, {len(paces)}, so they wait "
                "for credits; raise method.activation_cap"
            )
        case "uplink":
            return f"{bound} of {len(paces)} devices compute activations faster than they can send"
    if splits:
        return "the server could train on more activations than the devices compute"
    return f"the devices' own speed; {slowest} is the slowest"


def _candidates(experiment: Experiment, plan: Plan) -> dict[Objective, tuple[Candidate, ...]]:
    """The table of either objective: they differ in what they count as a device's work."""
    if not plan.table:
        return {}
    tables = {plan.objective: plan.table}
    for objective in get_args(Objective):
        if objective not in tables:
            planning = replace(experiment.task.planning, objective=objective)
            other = replace(experiment, task=replace(experiment.task, planning=planning))
            tables[objective] = other.plan().table
    return tables


def _memory(
    experiment: Experiment, plan: Plan, cap: int | None, pacing: Pacing
) -> ServerMemory | None:
    if not plan.server_blocks:
        return None
    model = sum(block.parameter_bytes for block in plan.server_blocks)
    activation = pacing.sizes.activation * experiment.recipe.training.batch_size
    devices = len(experiment.fleet.devices)
    return ServerMemory(
        model=model,
        activation=activation,
        cap=cap,
        shared=memory_of_shared(model, activation, cap or devices),
        copies=memory_of_copies(model, activation, devices),
    )


def _warnings(experiment: Experiment, paces: Paces, timeout: float | None) -> Iterator[str]:
    slowest = max(paces, key=lambda device: paces[device].turnaround)
    turnaround = paces[slowest].turnaround
    if timeout is not None and turnaround > _PATIENCE * timeout:
        yield (
            f"{slowest} answers a turn-on after {turnaround:.1f} s on average, and a credit "
            f"expires after method.credit_timeout = {timeout:g} s: its batches may come too late; "
            "raise method.credit_timeout"
        )
    if experiment.fleet.churn is not None or experiment.fleet.changes:
        yield "devices that leave and bandwidths that change are not in this prediction"


def _auxiliary_warning(plan: Plan) -> Iterator[str]:
    server = sum(block.parameters for block in plan.server_blocks)
    extra = plan.auxiliary_profile
    if extra is not None and extra.parameters > server:
        yield (
            f"the auxiliary network has {extra.parameters:,} parameters, more than the whole "
            f"server side ({server:,}); choose a smaller split.at or method.auxiliary = "
            '"classifier"'
        )
