"""A run that goes on longer than its recipe said at first: only ``stop`` may change, and grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from fedoptima.config.load import set_key, validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.stopping import BUDGETS, Stopper, StopRule
from fedoptima.experiments.result import Result
from fedoptima.experiments.run_directory import RunDirectory


def extend(run: RunDirectory, recipe: Recipe, changes: Mapping[str, object]) -> Recipe:
    """The recipe with ``changes`` of ``stop``; `RunDirectory.extend` lets the run go on with it.

    ``changes``: values by key ("stop.epochs" or "epochs").
    """
    extended = _changed(recipe, changes, str(run.path))
    if run.over:
        if not run.last_state.is_dir():
            raise ConfigError(
                f"{run.path}: the state at its end was not kept (a dry run, a run of a comparison "
                "or of an older fedoptima), so it cannot be continued; start a new run with "
                f"the same recipe and --set {_listed(changes)}"
            )
        if reason := _already(extended.stop, run.read_result()):
            raise ConfigError(
                f"{run.path}: would end at once ({reason}); extend that key of stop as well"
            )
    return extended


def announcement(before: Recipe, after: Recipe) -> str:
    """What changes, in words for who asked for it."""
    old, new = asdict(before.stop), asdict(after.stop)
    changes = (
        f"stop.{key} = {_plain(new[key])}"
        + ("" if old[key] is None else f" instead of {_plain(old[key])}")
        for key in new
        if new[key] != old[key]
    )
    moves = after.training.schedules_move
    follows = "; the learning rate follows the new budget" if moves else ""
    return f"going on to {', '.join(changes)}{follows}"


def _changed(recipe: Recipe, changes: Mapping[str, object], where: str) -> Recipe:
    before = asdict(recipe.stop)
    table = recipe.model_dump(exclude_unset=True)
    table["stop"] = {key: value for key, value in before.items() if value is not None}
    for key, value in changes.items():
        path = key if "." in key else f"stop.{key}"
        if not path.startswith("stop."):
            raise ConfigError(
                f"{where}: {key} cannot be extended, only keys of stop can, for example "
                "stop.epochs=200; with another recipe it is another run"
            )
        set_key(table, path, value)
    extended = validate(Recipe, table, where).model_copy(update={"workers": recipe.workers})
    for key in BUDGETS:
        old, new = before[key], getattr(extended.stop, key)
        if old is not None and new is not None and new < old:
            less = f"stop.{key} = {new:g} is less than before, {old:g}"
            raise ConfigError(f"{where}: {less}; give more")
    if extended.stop == recipe.stop:
        raise ConfigError(f"{where}: has stop: {_listed(before)} already; give more")
    return extended


def _already(rule: StopRule, result: Result) -> str | None:
    """The reason why a run with this result would end at once."""
    stopper = Stopper(rule)
    reasons = [
        stopper.evaluated(dict(point.metrics), epochs=point.epochs) for point in result.curve
    ]
    last = result.curve[-1] if result.curve else None
    if last is not None:
        reasons.append(stopper.spent(rounds=result.rounds, epochs=last.epochs))
        if rule.seconds is not None and last.seconds >= rule.seconds:
            reasons.append(f"{rule.seconds:g} seconds are over")
    return next((reason for reason in reasons if reason), None)


def _plain(value: object) -> str:
    """As it is written in a recipe: "2", where the rule holds 2.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _listed(changes: Mapping[str, object]) -> str:
    return ", ".join(
        f"{key}={_plain(value)}" for key, value in changes.items() if value is not None
    )
