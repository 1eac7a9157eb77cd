"""What the public functions take: a recipe, or its parts, some of them as Python objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedoptima.config.load import as_recipe, of_method, unset_in_methods, validate
from fedoptima.config.own_settings import TABLES, laid_over
from fedoptima.config.schema import Recipe
from fedoptima.config.unused import refuse_unused
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.given import Given, custom_table, given_data, given_method
from fedoptima.experiments.given_task import given_task
from fedoptima.experiments.given_training import given_training
from fedoptima.methods.registry import Builder

if TYPE_CHECKING:  # they take torch, and a dry run may do without
    from torch import nn

    from fedoptima.data.dataset import Dataset
    from fedoptima.tasks.task import Loss, Task

Options = Mapping[str, object]
RecipeLike = Recipe | str | Path


def recipe_from(
    recipe: RecipeLike | None,
    where: str,
    *,
    model: nn.Module | str | Options | None = None,
    train: object = None,
    test: object = None,
    data: Dataset | str | Options | None = None,
    fleet: str | Options | None = None,
    method: Builder | str | Options | None = None,
    stop: Options | None = None,
    epochs: float | None = None,
    training: Options | None = None,
    task: Task | str | Options | None = None,
    loss: Loss | None = None,
    several: bool = False,
    **others: object,
) -> tuple[Recipe, Given]:
    """The whole recipe, and what of it is given in Python; parts replace those of ``recipe``,
    `training` and `split` key by key, as ``--set`` does.

    ``several``: it is for several methods; otherwise what its method has of its own is laid over
    the rest. ``others``: tables and values of the recipe, as they are there. ``where``: what a
    mistake is in, a call such as "simulate()".
    """
    for name, table, example in (
        ("training", training, "{'batch_size': 50}"),
        ("stop", stop, "{'epochs': 10}"),
    ):
        if table is not None and not isinstance(table, Mapping):
            raise ConfigError(f"{where}: {name} is a {type(table).__name__}; give {name}={example}")
    if epochs is not None and stop is not None and stop.get("epochs", epochs) != epochs:
        raise ConfigError(
            f"{where}: epochs={epochs} and stop={{'epochs': {stop['epochs']}}} are both given; "
            "leave one of them out"
        )
    if fleet is not None and not isinstance(fleet, str | Mapping):
        raise ConfigError(
            f"{where}: fleet is a {type(fleet).__name__}; give the name of one ('testbed_a'), or "
            "fleet={'server': {'gflops': 1.0}, 'devices': [{'name': 'phone', 'gflops': 0.1}]}"
        )
    method_table, methods = given_method(method)
    training_table, functions = given_training(training)
    learned, base = given_task(task), None if recipe is None else as_recipe(recipe)
    given = Given(
        model=None if model is None or isinstance(model, str | Mapping) else model,
        dataset=given_data(train, test, data, lambda: learned.of(base, loss)),
        loss=loss,
        methods=methods,
        task=learned.given,
        functions=functions,
    )
    parts = {
        "model": {"name": "custom"} if given.model is not None else _table(model, "name"),
        "data": _data_table(given.dataset, data),
        "fleet": _table(fleet, "preset"),
        "method": method_table,
        "task": learned.table,
        "training": training_table,
        "stop": stop if epochs is None else {**(stop or {}), "epochs": epochs},
        **others,
    }
    whole = _resolve(base, parts, where)
    return whole if several else of_method(whole), given


def _data_table(dataset: Dataset | None, data: object) -> Options | None:
    if dataset is None:
        return _table(data, "name")
    return custom_table(dataset, data)


def _table(part: object, key: str) -> Options | None:
    if part is None or isinstance(part, Mapping):
        return part
    return {key: part}


def _resolve(base: Recipe | None, parts: Options, where: str) -> Recipe:
    given = {name: part for name, part in parts.items() if part is not None}
    if base is None:
        refuse_unused(given, given, where)
        return validate(Recipe, given, where)
    if not given:
        return base
    kept = {**base.model_dump(exclude_unset=True), "workers": base.workers}
    laid = {name: part for name, part in given.items() if name in TABLES}
    for key in _keys_in(laid):
        unset_in_methods(kept, key)
    others = {name: part for name, part in given.items() if name not in laid}
    whole = {**laid_over(kept, laid), **others}
    refuse_unused(given, whole, where)
    return validate(Recipe, whole, where)


def _keys_in(table: Options, path: str = "") -> Iterator[str]:
    """Of values, tables left out: "training.device.momentum"."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _keys_in(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"
