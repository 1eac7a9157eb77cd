"""Simulated runs: the public functions `simulate` and `resume`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedoptima.config.load import as_recipe, validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.layouts import ReadingProgress
from fedoptima.experiments.assembly import Simulated
from fedoptima.experiments.dry_setup import prepare_dry
from fedoptima.experiments.extension import extend as extend_run
from fedoptima.experiments.given import Given, custom_table, given_data, given_method
from fedoptima.experiments.result import Result
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.simulated_run import SimulationObserver, run_experiment
from fedoptima.methods.registry import Builder
from fedoptima.named_code import allow

if TYPE_CHECKING:  # they take torch, and a dry run may do without
    from torch import nn

    from fedoptima.data.dataset import Dataset
    from fedoptima.engine.evaluation import Loss

Options = Mapping[str, object]


def simulate(
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
    stop: Options | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    workers: int | Literal["auto"] | None = None,
    loss: Loss | None = None,
    out: str | Path | None = None,
    dry: bool = False,
    checkpoint_every: float = 60.0,
    observer: SimulationObserver | None = None,
    progress: ReadingProgress = lambda *_: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Result:
    """Train on a virtual clock and return the trained model, its curve and every node's idle time.

    Either a recipe (a file or a `Recipe`), or its parts; parts given with a recipe replace
    those of it. A part is what the recipe's table would hold: a name (``fleet="testbed_a"``,
    ``method="fl"``) or a mapping (``training={"batch_size": 50}``). ``model`` may be any
    ``nn.Module``; ``train`` and ``test`` may be ``(inputs, labels)`` or a map-style dataset;
    ``method`` may be a function that makes a `fedoptima.methods.Method`, and in a mapping
    ``{"name": function, "option": value}``.

    With ``out`` the run leaves a folder there and can be resumed after a kill. ``interrupted`` is
    called between events; if it returns True, a checkpoint is saved and `Interrupted` is raised.
    """
    method_table, methods = given_method(method)
    given = Given(
        model=None if model is None or isinstance(model, str | Mapping) else model,
        dataset=given_data(train, test, data),
        loss=loss,
        methods=methods,
    )
    resolved = _resolve(
        recipe,
        {
            "model": {"name": "custom"} if given.model is not None else _table(model, "name"),
            "data": _data_table(given.dataset, data),
            "fleet": _table(fleet, "preset"),
            "method": method_table,
            "training": training,
            "split": split,
            "stop": stop if epochs is None else {**(stop or {}), "epochs": epochs},
            "seed": seed,
            "device": device,
            "threads": threads,
            "workers": workers,
        },
    )
    return start(
        resolved,
        given,
        out=out,
        dry=dry,
        checkpoint_every=checkpoint_every,
        observer=observer,
        progress=progress,
        interrupted=interrupted,
    )


def start(
    recipe: Recipe,
    given: Given,
    *,
    out: str | Path | None,
    dry: bool,
    checkpoint_every: float,
    observer: SimulationObserver | None,
    progress: ReadingProgress,
    interrupted: Callable[[], bool],
) -> Result:
    """A new run of a complete recipe; see `simulate`."""
    experiment = _prepare(recipe, given, progress, dry=dry)
    directory = None
    if out is not None:
        directory = RunDirectory.create(Path(out), experiment.describe(dry=dry))
    try:
        return run_experiment(
            experiment,
            directory=directory,
            dry=dry,
            checkpoint_every=checkpoint_every,
            observer=observer,
            interrupted=interrupted,
        )
    except ConfigError:  # found at the start: nothing was trained, and `out` must be usable again
        if directory is not None:
            directory.discard()
        raise


def _prepare(recipe: Recipe, given: Given, progress: ReadingProgress, *, dry: bool) -> Simulated:
    if dry and (stored := prepare_dry(recipe, given)) is not None:
        return stored
    from fedoptima.experiments.setup import prepare  # takes torch

    return prepare(recipe, given, progress, dry=dry)


def resume(
    directory: str | Path,
    *,
    model: nn.Module | None = None,
    train: object = None,
    test: object = None,
    method: Builder | None = None,
    loss: Loss | None = None,
    extend: Options | None = None,
    allow_modules: Sequence[str] = (),
    workers: int | Literal["auto"] = "auto",
    checkpoint_every: float = 60.0,
    observer: SimulationObserver | None = None,
    progress: ReadingProgress = lambda *_: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Result:
    """Resume a run that was killed or stopped; it ends as if it had not been interrupted.

    If the run is over already, its result is read from the folder. With ``extend``, values of keys
    of ``stop`` (``{"epochs": 200}``), it goes on until then, whether it was over or not.

    What was given to `simulate` as Python objects has to be given again. Code that the run's files
    name ("package.module:function") is loaded only from the packages in ``allow_modules``.
    """
    run, recipe, dry = RunDirectory.open(Path(directory))
    if run.over and not extend:
        return run.read_result()
    data, code = given_data(train, test, recipe.data.options), allow(allow_modules)
    given = Given(model, data, loss, code, given_method(method)[1])
    given.check(recipe, run.path)
    if extend:
        recipe = extend_run(run, recipe, extend)
    recipe = recipe.model_copy(update={"workers": workers})
    experiment = _prepare(recipe, given, progress, dry=dry)
    if extend:  # not earlier: what was not possible leaves the run as it was
        run.extend(recipe)
    return run_experiment(
        experiment,
        directory=run,
        dry=dry,
        resume=True,
        checkpoint_every=checkpoint_every,
        observer=observer,
        interrupted=interrupted,
    )


def _data_table(dataset: Dataset | None, data: object) -> Options | None:
    if dataset is None:
        return _table(data, "name")
    return custom_table(dataset, data)


def _table(part: object, key: str) -> Options | None:
    if part is None or isinstance(part, Mapping):
        return part
    return {key: part}


def _resolve(recipe: Recipe | str | Path | None, parts: Options) -> Recipe:
    given = {name: part for name, part in parts.items() if part is not None}
    if recipe is None:
        return validate(Recipe, given, "simulate()")
    base = as_recipe(recipe)
    if not given:
        return base
    kept = {**base.model_dump(exclude_unset=True), "workers": base.workers}
    return validate(Recipe, {**kept, **given}, "simulate()")
