"""What would help: the recipe simulated dry, as it is and with one thing changed at a time.

This does not analyse the run itself. A trial changes one part of the prepared
experiment (a speed, a link, the cap, the split), so all share data, partition and schedule. The
wall time is bounded: changes that do not fit are skipped and listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import sqrt

from fedoptima.analysis.formatting import brief, listed, mebibytes, percent
from fedoptima.analysis.run_view import RunView
from fedoptima.analysis.spans import Kind
from fedoptima.analysis.summary import Summary
from fedoptima.config.fleet import DeviceGroup, FleetConfig, ServerConfig
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError, FedOptimaError
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.experiments.given import Given
from fedoptima.experiments.method_setup import build_method
from fedoptima.experiments.setup import Experiment, prepare
from fedoptima.experiments.simulated_run import Interrupted, run_experiment
from fedoptima.named_code import ANY_CODE, AllowedCode
from fedoptima.sim.fleet import Fleet, NodeSpec
from fedoptima.trace.description import Mode

BUDGET = 10.0  # seconds on the wall, for all trials together
EPOCHS = 2.0  # of a trial; the first rounds show how a fleet behaves
_UNSEEN = 1000.0  # GFLOP/s of a server that was not seen training: it only merges
WORTH_IT = 0.02  # smaller gains are ignored


@dataclass(frozen=True, slots=True)
class Trial:
    """A dry run of the recipe with one change."""

    change: str  # in words; empty: as it is
    device_throughput: float  # samples/s
    server_throughput: float
    device_idle: float  # share of the time, the mean over devices
    server_idle: float
    note: str = ""  # what the change does to a device, where that is known

    @staticmethod
    def of(change: str, summary: Summary) -> Trial:
        speed, devices, server = summary.throughput, summary.device_usage, summary.server_usage
        return Trial(
            change, speed.device, speed.server, 1 - devices.utilisation, 1 - server.utilisation
        )


@dataclass(frozen=True)
class Advice:
    reason: str = ""  # why there is none
    baseline: Trial | None = None
    trials: tuple[Trial, ...] = ()
    skipped: tuple[str, ...] = ()  # changes for which there was no time
    epochs: float = EPOCHS
    measured: bool = False  # the fleet is what the devices reported, not the recipe's

    def gain(self, trial: Trial) -> float:
        """In throughput: of both sides where the server trains, the geometric mean."""
        base = self.baseline
        assert base is not None
        if not base.device_throughput:
            return 0.0
        devices = trial.device_throughput / base.device_throughput
        if not base.server_throughput:
            return devices - 1
        return sqrt(devices * trial.server_throughput / base.server_throughput) - 1

    @property
    def best(self) -> Trial | None:
        """None: no change is worth it."""
        best = max(self.trials, key=self.gain, default=None)
        return best if best is not None and self.gain(best) >= WORTH_IT else None

    def paragraphs(self) -> list[str]:
        if self.reason:
            return [f"No advice: {self.reason}."]
        return [_finding(self), _origin(self)]

    def plain(self) -> dict[str, object]:
        return {
            "reason": self.reason,
            "best": self.best.change if self.best else None,
            "baseline": asdict(self.baseline) if self.baseline else None,
            "trials": [{**asdict(trial), "gain": self.gain(trial)} for trial in self.trials],
            "skipped": list(self.skipped),
            "epochs": self.epochs,
            "fleet": "as reported by the devices" if self.measured else "the recipe's",
        }


def advise(
    recipe: Recipe,
    view: RunView,
    *,
    code: AllowedCode = ANY_CODE,
    budget: float = BUDGET,
    clock: Callable[[], float] = time.monotonic,
) -> Advice:
    """For a run over the network the fleet is what the devices reported.

    ``code``: what the recipe may name, if it is not the caller's own.
    """
    real = view.description.mode is Mode.NETWORK
    deadline = clock() + budget

    def late() -> bool:
        return clock() > deadline

    def in_time(*_: object) -> None:
        if late():
            raise Interrupted("reading the data took too long")

    if "custom" in (recipe.model.name, recipe.data.name):
        return Advice("model or data were given in Python, so the recipe alone cannot be rerun")
    epochs = min(EPOCHS, recipe.stop.epochs or EPOCHS)
    short = recipe.model_copy(update={"stop": StopRule(epochs=epochs)})
    try:
        experiment = (
            measured_experiment(short, view, in_time, code)
            if real
            else prepare(short, Given(code=code), in_time, dry=True)
        )
        baseline = _dry("", experiment, late)
    except Interrupted:
        return Advice(f"a dry simulation of the recipe takes more than {budget:g} s")
    except FedOptimaError as error:
        return Advice(f"the recipe cannot be rerun here ({error})")
    trials, skipped = [], []
    notes = _split_notes(experiment, view.plan.split if view.plan else 0)
    for change, changed in changes(experiment, view.plan.split if view.plan else 0):
        try:
            trials.append(replace(_dry(change, changed, late), note=notes.get(change, "")))
        except Interrupted:
            skipped.append(change)
        except ConfigError:  # the model has no such split, the fleet no such speed
            continue
    return Advice("", baseline, tuple(trials), tuple(skipped), epochs, real)


def _dry(change: str, experiment: Experiment, late: Callable[[], bool]) -> Trial:
    if late():
        raise Interrupted("no time left")
    result = run_experiment(experiment, dry=True, interrupted=late, warn=False)
    return Trial.of(change, result.summary)


# ---- the fleet of a real run --------------------------------------------------------------------


def measured_experiment(
    recipe: Recipe,
    view: RunView,
    progress: Callable[[str, int, int], None],
    code: AllowedCode = ANY_CODE,
) -> Experiment:
    """The fleet of a real run: what the devices reported, and how fast the server worked."""
    if not view.joins:
        raise ConfigError("no device has joined the run yet")
    groups = [
        validate(
            DeviceGroup,
            {
                "name": name,
                "gflops": join.flops_per_second / 1e9,
                "mbps": join.bytes_per_second * 8e-6,
            },
            f"device {name}",
        )
        for name, join in view.joins.items()
    ]
    fleet = FleetConfig(server=ServerConfig(gflops=_UNSEEN), devices=tuple(groups))
    given = Given(code=code)
    experiment = prepare(recipe.model_copy(update={"fleet": fleet}), given, progress, dry=True)
    plan = view.plan
    if plan is not None and plan.table and experiment.workload.planning.split is None:
        planning = replace(experiment.workload.planning, split=plan.split)
        experiment = replace(experiment, workload=replace(experiment.workload, planning=planning))
    server = _server(experiment, view)
    return replace(experiment, fleet=replace(experiment.fleet, server=server))


def _server(experiment: Experiment, view: RunView) -> NodeSpec:
    """Its training speed, and how long its merges took."""
    spec, summary = experiment.fleet.server, view.summary
    trained, merged = _seconds(view, Kind.TRAIN), _seconds(view, Kind.MERGE)
    if trained and summary.server_samples:
        work = experiment.plan().server_flops(answered=False)
        spec = replace(spec, flops_per_second=work * summary.server_samples / trained)
    if merged and summary.versions:
        spec = replace(spec, seconds={"merge": merged / summary.versions})
    return spec


def _seconds(view: RunView, kind: Kind) -> float:
    lane = view.timeline.lanes.get(SERVER)
    return view.timeline.bin_seconds * sum(lane.shares.get(kind, ())) if lane else 0.0


# ---- one change each ---------------------------------------------------------------------------


def changes(experiment: Experiment, split: int) -> Iterator[tuple[str, Experiment]]:
    """``split``: as the run was planned."""
    fleet = experiment.fleet
    slowest = min(spec.flops_per_second for spec in fleet.devices.values())
    slow = [name for name, s in fleet.devices.items() if s.flops_per_second == slowest]
    whose = f"the slowest ({listed(slow)})" if len(slow) < len(fleet.devices) else "every device"
    yield (
        f"twice the speed of {whose}",
        _with_devices(experiment, {name: fleet.devices[name].times(2) for name in slow}),
    )
    if not _bandwidth_moves(fleet):
        wider = {name: replace(s, up=2 * s.up) for name, s in fleet.devices.items()}
        yield "twice the uplink of every device", _with_devices(experiment, wider)
    server = replace(fleet, server=fleet.server.times(2))
    yield "twice the server's speed", replace(experiment, fleet=server)
    if fleet.server.up:
        wide = replace(fleet.server, up=2 * fleet.server.up, down=2 * fleet.server.down)
        yield "twice the server's link", replace(experiment, fleet=replace(fleet, server=wide))
    yield from _other_caps(experiment)
    if experiment.plan().table and not experiment.recipe.split.per_device:
        for at, words in _other_splits(split).items():
            planning = replace(experiment.workload.planning, split=at)
            workload = replace(experiment.workload, planning=planning)
            yield words, replace(experiment, workload=workload)


def _other_splits(split: int) -> dict[int, str]:
    found = {split - 1: "one block less", split + 1: "one block more"}
    return {n: f"{words} on the devices (split.at = {n})" for n, words in found.items() if n >= 1}


def _split_notes(experiment: Experiment, split: int) -> dict[str, str]:
    """What another split does to a device, by the change in words."""
    rows = {row.split: row for row in experiment.plan().table}
    known = {at: words for at, words in _other_splits(split).items() if {at, split} <= rows.keys()}
    return {
        words: f"a batch costs a device {brief(rows[at].device_flops / 1e9)} GFLOP instead of "
        f"{brief(rows[split].device_flops / 1e9)}, and {mebibytes(rows[at].activation_bytes)} to "
        f"send instead of {mebibytes(rows[split].activation_bytes)}"
        for at, words in known.items()
    }


def _other_caps(experiment: Experiment) -> Iterator[tuple[str, Experiment]]:
    before, recipe = experiment.method.flow().cap, experiment.recipe
    if before is None or "activation_cap" not in experiment.method.resolved:
        return
    cap = 2 * before
    method = recipe.method.model_copy(update={"activation_cap": cap})
    changed = recipe.model_copy(update={"method": method})
    yield (
        f"twice the activation cap (method.activation_cap = {cap})",
        replace(
            # Any code: the method it names is loaded already, and was allowed then.
            experiment,
            recipe=changed,
            method=build_method(changed, len(experiment.fleet.devices)),
        ),
    )


def _with_devices(experiment: Experiment, devices: Mapping[NodeId, NodeSpec]) -> Experiment:
    fleet = experiment.fleet
    return replace(experiment, fleet=replace(fleet, devices={**fleet.devices, **devices}))


def _bandwidth_moves(fleet: Fleet) -> bool:
    """Then link speeds change during the run: doubling one would not last."""
    return fleet.churn is not None or any(change.kind == "bandwidth" for change in fleet.changes)


# ---- as text -----------------------------------------------------------------------------------


def _finding(advice: Advice) -> str:
    tried, best = len(advice.trials), advice.best
    if best is None:
        return (
            f"None of {tried} single changes that were tried would raise the throughput by "
            f"{100 * WORTH_IT:g} % or more: {_others(advice, None)}."
        )
    base = advice.baseline
    assert base is not None
    said = (
        f"Of {tried} single changes that were tried, {best.change} would help most: the devices "
        f"would train on {brief(best.device_throughput)} samples/s instead of "
        f"{brief(base.device_throughput)}"
    )
    if base.server_throughput:
        said += (
            f", the server on {brief(best.server_throughput)} instead of "
            f"{brief(base.server_throughput)}"
        )
    said += f"; devices idle {_instead(best.device_idle, base.device_idle)}"
    said += f", server {_instead(best.server_idle, base.server_idle)}."
    others = _others(advice, best)
    return f"{said} The others: {others}." if others else said


def _instead(share: float, before: float) -> str:
    now, was = percent(share), percent(before)
    return f"{now} as before" if now == was else f"{now} instead of {was}"


def _others(advice: Advice, best: Trial | None) -> str:
    rest = sorted((t for t in advice.trials if t is not best), key=advice.gain, reverse=True)
    return "; ".join(f"{t.change} {100 * advice.gain(t):+.0f} %{_reason(advice, t)}" for t in rest)


def _reason(advice: Advice, trial: Trial) -> str:
    """Why a change does harm: that is not what one expects of it."""
    base = advice.baseline
    if base is None or advice.gain(trial) > -WORTH_IT:
        return ""
    said = [
        f"{side} would train on {brief(now)} samples/s instead of {brief(before)}"
        for side, now, before in (
            ("the devices", trial.device_throughput, base.device_throughput),
            ("the server", trial.server_throughput, base.server_throughput),
        )
        if brief(now) != brief(before)
    ]
    return f" ({', '.join(filter(None, (*said, trial.note)))})"


def _origin(advice: Advice) -> str:
    fleet = " with devices as fast as they reported" if advice.measured else ""
    said = (
        f"This comes from dry simulations of the recipe{fleet}, {advice.epochs:g} epochs each, as "
        "it is and with that one change; they compare throughput, not accuracy."
    )
    if advice.skipped:
        said += f" There was no time to try {listed(advice.skipped)}."
    return said
