"""The paper's unstable environment (section 6.4), for any recipe: how much throughput is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedoptima.comparison.many_runs import On
from fedoptima.comparison.pool import PoolObserver
from fedoptima.comparison.result import Comparison
from fedoptima.comparison.retained import LEAVING
from fedoptima.comparison.spec import Methods
from fedoptima.comparison.sweep import sweep
from fedoptima.config.fleet import ChurnConfig
from fedoptima.config.load import load_recipe
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.stopping import StopRule

PROBABILITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
HOURS = 3.0
EVERY = 600.0  # seconds


def unstable(
    recipe: Recipe | str | Path,
    mbps: tuple[float, float],
    *,
    hours: float = HOURS,
    every: float = EVERY,
) -> Recipe:
    """The recipe for ``hours`` on the run's clock, with bandwidths that change.

    ``mbps``: lowest and highest; the paper's are 25 and 50 on Testbed A, 50 and 100 on B.
    """
    base = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if base.fleet is None:
        raise ConfigError("fleet: is missing; retention is measured in a simulation")
    churn = ChurnConfig(every=every, leave_probability=0.0, mbps=mbps)
    fleet = base.fleet.model_copy(update={"churn": churn})
    return base.model_copy(update={"fleet": fleet, "stop": StopRule(hours=hours)})


def retention(
    recipe: Recipe | str | Path,
    mbps: tuple[float, float],
    *,
    probabilities: Sequence[float] = PROBABILITIES,
    methods: Methods = "all",
    seeds: int | Sequence[int] | None = 3,
    hours: float = HOURS,
    every: float = EVERY,
    jobs: int | None = None,
    on: On = "processes",
    out: str | Path | None = None,
    command: str | None = None,
    progress: bool | None = None,
    observer: PoolObserver | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Comparison:
    """R(p) = T(p) / T(0) of every method, dry: `fedoptima.comparison.retention.retention`.

    A sweep over the probability with which devices leave; `retained.retention_of(result, row)`
    gives R of useful and of device samples, and they are in its table, CSV and JSON. The same as

        fedoptima sweep RECIPE --dry --methods all --seeds 3 --set 'stop={hours=3}' \\
            --set 'fleet.churn={leave_probability=0,mbps=[25.0,50.0]}' \\
            --vary fleet.churn.leave_probability=0,0.1,0.2,0.3,0.4,0.5

    Args:
        recipe: A recipe with a fleet.
        mbps: Lowest and highest bandwidth of a device; the paper's: 25 and 50 on A, 50 and 100
            on B.
        probabilities: Of a device to leave at each change; 0 has to be there.
        methods: As in `sweep`.
        seeds: As in `sweep`.
        hours: Of each run, on its clock.
        every: Seconds between two changes.
        jobs: As in `sweep`.
        on: As in `sweep`.
        out: As in `sweep`: finished runs are kept.
        command: As in `sweep`.
        progress: As in `sweep`.
        observer: As in `sweep`.
        interrupted: As in `sweep`.
    """
    if 0 not in probabilities:
        raise ConfigError("R(p) compares with p = 0: add 0 to the probabilities")
    return sweep(
        unstable(recipe, mbps, hours=hours, every=every),
        {LEAVING: list(probabilities)},
        methods=methods,
        seeds=seeds,
        dry=True,
        jobs=jobs,
        on=on,
        out=out,
        command=command,
        progress=progress,
        observer=observer,
        interrupted=interrupted,
    )
