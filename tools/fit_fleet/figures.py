"""What dry runs predict of a method on a fleet, in the quantities that the paper reports."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fedoptima.analysis.summary import Summary
from fedoptima.config.fleet import ChurnConfig, FleetConfig
from fedoptima.config.load import load_recipe
from fedoptima.config.schema import MethodConfig
from fedoptima.core.stopping import StopRule
from fedoptima.experiments.dry_setup import prepare_dry
from fedoptima.experiments.given import Given
from fedoptima.experiments.simulated_run import run_experiment
from fedoptima.paper_numbers import RECIPES, Workload

FOLDER = Path(__file__).parents[2] / "recipes"
METHODS = ("fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl")
EPOCHS = 2.0  # of a dry run: every round is like the one before, with a barrier exactly so
ONE_ROUND = ("fl", "splitfed", "pipar")
HOURS = 6.0  # of one with devices that come and go: 36 changes
MBPS = {"a": (25.0, 50.0), "b": (50.0, 100.0)}  # the bandwidths drawn there (Sec. 6.4)


@dataclass(frozen=True, slots=True)
class Figures:
    """An epoch here: as many useful samples (record 0027) as all devices hold."""

    epoch_seconds: float
    samples_per_second: float
    device_samples_per_second: float
    server_idle: float  # seconds an epoch
    device_idle: float
    server_busy: float  # share of the time
    device_busy: float
    round_bytes: float  # while the devices train on as many samples as they hold


def figures(
    workload: Workload,
    fleet: FleetConfig,
    methods: Iterable[str] = METHODS,
    options: Mapping[str, Mapping[str, object]] | None = None,
) -> dict[str, Figures]:
    """``options``: of methods, by name."""
    given = options or {}
    return {
        method: _figures(
            *dry_run(
                *(workload, fleet, method),
                StopRule(epochs=1.0 if method in ONE_ROUND else EPOCHS),
                given.get(method, {}),
            )
        )
        for method in methods
    }


def retention(workload: Workload, fleet: FleetConfig, method: str) -> float:
    """R(0.5), of useful samples; bandwidths vary in T(0), too."""
    speeds = []
    for probability in (0.5, 0.0):
        churn = ChurnConfig(leave_probability=probability, mbps=MBPS[workload[0]])
        moving = fleet.model_copy(update={"churn": churn})
        summary, _ = dry_run(workload, moving, method, StopRule(hours=HOURS))
        speeds.append(summary.useful_throughput)
    return speeds[0] / speeds[1]


def dry_run(
    workload: Workload,
    fleet: FleetConfig,
    method: str,
    stop: StopRule,
    options: Mapping[str, object] = MappingProxyType({}),
) -> tuple[Summary, int]:
    """And how many samples all devices hold."""
    recipe = load_recipe(FOLDER / f"{RECIPES[workload]}.toml")
    # A place where nothing is: the complete data set is assumed, whatever this machine has.
    data = recipe.data.model_copy(update={"directory": "/nowhere"})
    # What is said of each: that data are assumed, and what a short run does not merge.
    for quiet in ("fedoptima.data", "fedoptima.run"):
        logging.getLogger(quiet).setLevel(logging.ERROR)
    changed = {
        "fleet": fleet,
        "method": MethodConfig.model_validate({"name": method, **options}),
        "data": data,
        "stop": stop,
    }
    experiment = prepare_dry(recipe.model_copy(update=changed), Given())
    assert experiment is not None
    return run_experiment(experiment, dry=True).summary, sum(experiment.samples.values())


def _figures(summary: Summary, held: int) -> Figures:
    speed = summary.useful_throughput
    epochs = summary.work.useful / held
    server, device = summary.server_usage, summary.device_usage
    return Figures(
        epoch_seconds=held / speed,
        samples_per_second=speed,
        device_samples_per_second=summary.throughput.device,
        server_idle=server.idle / epochs,
        device_idle=device.idle / epochs,
        server_busy=server.utilisation,
        device_busy=device.utilisation,
        round_bytes=summary.per_epoch(summary.traffic.up.total + summary.traffic.down.total),
    )
