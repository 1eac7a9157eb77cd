"""How long the methods of a comparison are trained: a protocol is a change of its recipe.

epochs        as many epochs for each, and a schedule that follows them: the recipe as it is
time          as much virtual time for each as FedOptima took, and a schedule that follows it
convergence   each until its accuracy on held-out data has not improved for 30 epochs; the rate is
              constant, or falls in steps

On the command line: ``fedoptima compare RECIPE --protocol time --seeds 3``. In Python:

    compare(equal_time(recipe, time_taken("runs/a-image")), seeds=3)  # of a finished comparison
    compare(equal_time(recipe, dry_time(recipe)), seeds=3)  # of a dry run
    compare(until_convergence(recipe), seeds=3)
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from fedoptima.comparison.folder import about_file
from fedoptima.comparison.spec import REFERENCE
from fedoptima.config.load import set_key, unset_in_methods, validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.stopping import StopRule
from fedoptima.experiments.simulation import simulate
from fedoptima.trace.plain_files import read_plain
from fedoptima.trace.run_folder import RunFiles

PATIENCE = 30.0  # epochs: the paper's
HELD_OUT = 0.1  # of the training data


def equal_time(recipe: Recipe, seconds: float) -> Recipe:
    """All methods train for ``seconds`` of virtual time, and nothing else ends them.

    Schedules follow the share of that time (`StopRule.progress`). What a device has not handed in
    by then is lost, behind a barrier the whole round.
    """
    if seconds <= 0:
        raise ConfigError(f"a time of {seconds:g} s: must be more than 0")
    stop = StopRule(
        hours=seconds / 3600, metric=recipe.stop.metric, direction=recipe.stop.direction
    )
    return recipe.model_copy(update={"stop": stop})


def until_convergence(recipe: Recipe, *, patience: float | None = None) -> Recipe:
    """Each method trains until what it is judged by has not improved for ``patience`` epochs.

    ``patience``: by default the recipe's, or 30. A tenth of the training data is held out unless
    the recipe holds out another share. The rate is constant, or falls in steps where the recipe has
    them: they follow `stop.epochs`, which is then the most that a run may take. Otherwise it has
    no effect, for it is the budget of the other protocol; hours and rounds stay as bounds.
    """
    stop, steps = recipe.stop, recipe.training.schedule.kind == "step"
    if steps and stop.epochs is None:
        raise ConfigError(
            "training.schedule.kind = 'step' follows a budget: give stop.epochs, the most that a "
            "run may take"
        )
    table = {**recipe.model_dump(exclude_unset=True), "workers": recipe.workers}
    table["stop"] = {
        **{key: getattr(stop, key) for key in ("rounds", "hours", "metric", "direction")},
        "patience": patience or stop.patience or PATIENCE,
        "epochs": stop.epochs if steps else None,
    }
    if recipe.data.validation == "test":
        set_key(table, "data.validation", HELD_OUT)
    if not steps:
        constant: dict[str, object] = {"schedule": {}, "device+server.schedule": None}
        for key, value in constant.items():
            set_key(table, f"training.{key}", value)
            unset_in_methods(table, f"training.{key}")
    return validate(Recipe, table, recipe.name)


# ---- how long FedOptima takes --------------------------------------------------------------------


def dry_time(recipe: Recipe) -> float:
    """Seconds that FedOptima takes for the recipe's epochs, by a dry run.

    That is what it takes when it trains, unless accuracy ends it earlier.
    """
    if recipe.stop.only_accuracy:
        raise ConfigError(
            "how long it takes depends on the accuracy: give stop.epochs, or the time of a "
            "finished run (--time-of)"
        )
    other = REFERENCE if recipe.method.name != REFERENCE else None
    return simulate(recipe, method=other, dry=True, progress=False).seconds


def time_taken(folder: str | Path, method: str = REFERENCE) -> float:
    """Seconds that a finished run took, or the mean over a comparison's runs of a method."""
    folder = Path(folder)
    if (about := about_file(folder)) is None:
        summary = RunFiles(folder).summary
        if not summary.is_file():
            raise ConfigError(f"{folder}: holds no finished run and no comparison")
        return float(json.loads(read_plain(summary))["seconds"])
    runs = json.loads(read_plain(about)).get("runs", ())
    if about.stem != "comparison":
        raise ConfigError(f"{folder}: holds a {about.stem}; name the folder of one of its runs")
    times = [
        run["figures"]["seconds"] for run in runs if run["method"] == method and run["figures"]
    ]
    if not times:
        raise ConfigError(f"{folder}: has no finished run of {method}; name another folder")
    return fmean(times)
