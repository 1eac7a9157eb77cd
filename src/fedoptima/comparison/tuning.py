"""Each method's settings, chosen from the same small grid on held-out data: never by test data.

A sweep in which a tenth of the training data is held out; then, for each method, the row with the
best accuracy on it after the last epoch (the lowest loss, where the task has no accuracy), the mean
over seeds. What was varied and chosen becomes the recipe's ``[methods.NAME]``, in ``tuned.toml``,
with what the search cost. Keys with one value only are conditions of the search and are not
recorded: that is how data are held out.

    swept = sweep(recipe, search_grid(recipe, methods, epochs=30), methods=methods, out=folder)
    write_choice(swept, folder)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedoptima.comparison.cases import shown
from fedoptima.comparison.folder import about_file
from fedoptima.comparison.protocols import HELD_OUT
from fedoptima.comparison.result import Comparison
from fedoptima.comparison.settings import option_of, recipe_key
from fedoptima.comparison.spec import About
from fedoptima.config.load import set_key, unset_in_methods, validate
from fedoptima.config.own_settings import TABLES, laid_over
from fedoptima.config.schema import Recipe
from fedoptima.config.toml_text import toml_text
from fedoptima.config.unused import OF_SGD_ALONE
from fedoptima.core.errors import ConfigError
from fedoptima.trace.run_folder import write_whole

Vary = Mapping[str, Sequence[object]]

TUNED, COST = "tuned.toml", "tuning.json"
RATE = "training.device+server.learning_rate"
RESET = "training.device+server.reset_on_load"  # momentum: kept, or forgotten with every model
_TIMES = (0.5, 1.0, 2.0)  # the recipe's rate
_ROUND = 20  # iterations
# The main option of a method where it is not the length of its rounds, and what is tried.
_MAIN: dict[str, tuple[str, tuple[float, ...]]] = {
    "fedasync": ("alpha", (0.4, 0.8)),
    "oafl": ("alpha", (0.4, 0.8)),
    "fedbuff": ("server_learning_rate", (0.5, 1.0)),
}


def search_grid(
    recipe: Recipe,
    methods: Iterable[str],
    vary: Vary | None = None,
    *,
    epochs: float | None = None,
) -> dict[str, Sequence[object]]:
    """What a sweep has to vary, for `tune`.

    ``vary``: instead of the usual grid, which has as many cells for each method: three rates,
    momentum kept or reset, two values of its main option. ``epochs``: of a run of the search; by
    default the recipe's.
    """
    if vary is None:
        rate = recipe.training.device.learning_rate
        vary = {RATE: [times * rate for times in _TIMES], RESET: [False, True]}
        vary |= dict(_main_option(recipe, name) for name in methods)
    for key, values in vary.items():
        table = recipe_key(key).partition(".")[0]
        if len(values) > 1 and option_of(key) is None and table not in TABLES:
            raise ConfigError(
                f"--vary {key}: is the same for all methods; what can be chosen for each are its "
                f"options and keys of {' and '.join(TABLES)}"
            )
    held_out = recipe.data.validation if recipe.data.validation != "test" else HELD_OUT
    search: dict[str, Sequence[object]] = {"data.validation": [held_out]}
    if epochs is not None:
        search["stop.epochs"] = [epochs]
    return {**vary, **search}


def _main_option(recipe: Recipe, method: str) -> tuple[str, list[object]]:
    if method in _MAIN:
        option, values = _MAIN[method]
        return f"{method}.{option}", list(values)
    usual, other = recipe.training.iterations, _ROUND
    return f"{method}.training.iterations", [usual, other if usual != other else 2 * other]


# ---- the choice ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The best settings of a method, and what the search for them took."""

    method: str
    settings: Mapping[str, object]  # those that were chosen, by the keys that were varied
    accuracy: float | None  # on the data held out: the mean over seeds, after the last epoch
    second: float | None  # of the next best settings
    runs: int
    failed: int  # of these runs
    epochs: float
    seconds: float  # of virtual time
    loss: float | None = None  # in place of the accuracy, where the task has none

    def held_out(self) -> tuple[str, str]:
        """How good the best and the next best settings are, in words."""

        def worded(value: float | None) -> str:
            if value is None:
                return "-"
            return f"{100 * value:.2f} %" if self.loss is None else f"loss {value:.4g}"

        return worded(self.accuracy if self.loss is None else self.loss), worded(self.second)


def choose(swept: Comparison) -> tuple[Choice, ...]:
    """The best row of each method. A row with a failed run is never chosen."""
    found = (_choose(swept, method) for method in swept.about.methods)
    return tuple(choice for choice in found if choice is not None)


def _choose(swept: Comparison, method: str) -> Choice | None:
    rows = [row for row in swept.rows if row.method == method]
    runs = [run for run in swept.runs if run.method == method]
    figures = [run.figures for run in runs if run.figures is not None]
    figure = "loss" if swept.shows_loss else "accuracy"
    ranked = [
        (value, row)
        for row in rows
        if not row.errors and (value := getattr(row.mean, figure, None)) is not None
    ]
    ranked.sort(key=lambda each: each[0], reverse=figure == "accuracy")
    if not ranked:
        return None
    (best, chosen), *others = ranked
    return Choice(
        method,
        {key: value for key, value in chosen.settings.items() if len(swept.about.vary[key]) > 1},
        best if figure == "accuracy" else None,
        others[0][0] if others else None,
        len(runs),
        len(runs) - len(figures),
        sum(each.epochs for each in figures),
        sum(each.seconds for each in figures),
        loss=best if figure == "loss" else None,
    )


def tuned_recipe(recipe: Recipe, choices: Iterable[Choice]) -> dict[str, Any]:
    """The recipe with the choices in it, as a table without what it leaves at its default.

    Where the search ran (`device`, `threads`) is no part of it.
    """
    table = recipe.model_dump(exclude_defaults=True, exclude={"device", "threads"})
    table["stop"] = asdict(recipe.stop)
    methods = table.setdefault("methods", {})
    for choice in choices:
        own: dict[str, Any] = {}
        before = methods.get(choice.method, {})
        for key, value in choice.settings.items():
            if (option := option_of(key)) is not None:
                own[option] = value
                if choice.method == recipe.method.name:  # else it would come before
                    table.get("method", {}).pop(option, None)
            else:
                unset_in_methods({"methods": {"": before}}, recipe_key(key))
                if value is not None:  # which is the default
                    set_key(own, recipe_key(key), value)
        methods[choice.method] = laid_over(before, own)
    for place in (table, *methods.values()):
        _leave_out_unused(place.get("training", {}))
    validate(Recipe, table, recipe.name)
    return table


def _leave_out_unused(training: dict[str, Any]) -> None:
    """sgd's keys beside an optimiser that was set over it: in one file they are refused."""
    for side in ("device", "server"):
        settings = training.get(side, {})
        if settings.get("name", "sgd") != "sgd":
            for key in OF_SGD_ALONE:
                settings.pop(key, None)


# ---- what is written -----------------------------------------------------------------------------


def write_choice(swept: Comparison, folder: Path, wall_seconds: float) -> tuple[Choice, ...]:
    """``tuned.toml``: a recipe that `compare` takes; ``tuning.json``: the choices and the cost."""
    choices = choose(swept)
    if not choices:
        raise ConfigError(
            f"{folder}: no method has settings with an accuracy or a loss to choose by; "
            f"{swept.about.kind}.md says what failed"
        )
    about = swept.about
    recipe = toml_text(tuned_recipe(about.recipe, choices))
    write_whole(folder / TUNED, f"{_header(about, choices, wall_seconds)}{recipe}")
    plain = {
        "command": about.command,
        "date": about.date,
        "versions": dict(about.versions),
        "machine": about.machine,
        "seeds": about.seeds,
        "conditions": {key: values[0] for key, values in about.vary.items() if len(values) == 1},
        "grid": {key: values for key, values in about.vary.items() if len(values) > 1},
        "choices": [asdict(choice) for choice in choices],
        "cost": {**cost(choices), "wall_seconds": wall_seconds},
    }
    write_whole(folder / COST, json.dumps(plain, indent=1))
    return choices


@contextmanager
def clocked(folder: Path) -> Iterator[Callable[[], float]]:
    """Seconds on the machine so far, with those of earlier commands that worked on this search.

    They are kept where it is interrupted.
    """
    began, file, before = time.monotonic(), folder / COST, 0.0
    if file.is_file():
        before = json.loads(file.read_text())["cost"]["wall_seconds"]

    def spent() -> float:
        return before + time.monotonic() - began

    try:
        yield spent
    except BaseException:
        if about_file(folder) is not None:  # the search has begun
            write_whole(file, json.dumps({"cost": {"wall_seconds": spent()}}))
        raise


def cost(choices: Iterable[Choice]) -> dict[str, float]:
    return {
        name: sum(getattr(choice, name) for choice in choices)
        for name in ("runs", "failed", "epochs", "seconds")
    }


def described(choice: Choice) -> list[str]:
    """What was chosen, by the last part of each key."""
    return [f"{key.rpartition('.')[2]}={shown(value)}" for key, value in choice.settings.items()]


def _header(about: About, choices: Sequence[Choice], wall_seconds: float) -> str:
    total, figure = cost(choices), "accuracy" if choices[0].loss is None else "loss"
    share = about.vary["data.validation"][0] if "data.validation" in about.vary else HELD_OUT
    seeds = ", ".join(map(str, about.seeds))
    lines = [
        f"Made by: {about.command or 'fedoptima.comparison.tuning'}",
        f"{about.date}, fedoptima {about.versions['fedoptima']}, {about.machine}",
        f"Under [methods] are the best settings of each method in the same grid, by the {figure}",
        f"on {share:.0%} of the training data, held out (seeds {seeds}). The search took",
        f"{total['runs']:g} runs, {total['epochs']:.0f} epochs, {total['seconds']:.0f} s of "
        f"virtual time and {wall_seconds:.0f} s on the machine:",
    ]
    for choice in choices:
        best, second = choice.held_out()
        failed = f" ({choice.failed} failed)" if choice.failed else ""
        lines.append(
            f"  {choice.method}: {best}, next {second}; {choice.runs} runs{failed}, "
            f"{choice.epochs:.0f} epochs, {choice.seconds:.0f} s"
        )
    return "".join(f"# {line}\n" for line in lines)
