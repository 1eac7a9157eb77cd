"""What is compared: which methods, which seeds, and what all of them share.

A run's recipe is the comparison's with another method and seed, so whatever derives from the rest
is the same for all: initial weights, partition, augmentation, schedule, fleet. The split is too.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

import torch

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.method import ServerTraining
from fedoptima.experiments.describe import versions
from fedoptima.experiments.setup import prepare
from fedoptima.methods.registry import METHODS, find_method, method_options

REFERENCE = "fedoptima"  # the method that others are compared with, if it is there


@dataclass(frozen=True)
class About:
    """What was compared, with what, where and when: enough to resume or repeat it."""

    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, object]  # for the methods that have them
    dry: bool
    target: float | None  # as given
    command: str | None
    versions: Mapping[str, str]
    machine: str
    date: str

    def to_json(self) -> dict[str, object]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "recipe": self.recipe.model_dump(mode="json")}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], where: str) -> About:
        given = {field.name: plain[field.name] for field in fields(cls)}
        recipe = validate(Recipe, given.pop("recipe"), where)
        methods, seeds = tuple(given.pop("methods")), tuple(given.pop("seeds"))
        return cls(recipe=recipe, methods=methods, seeds=seeds, **given)


def describe(
    recipe: Recipe,
    *,
    methods: str | Sequence[str],
    seeds: int | Sequence[int] | None,
    options: Mapping[str, object],
    dry: bool,
    target: float | None,
    command: str | None,
) -> About:
    """Checks everything that can be checked without running anything."""
    recipe = recipe.model_copy(update={"threads": recipe.threads or 1})
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"target = {target}: an accuracy is above 0 and at most 1 (0.8 is 80 %)")
    about = About(
        recipe=recipe,
        methods=_methods(methods),
        seeds=_seeds(seeds, recipe.seed),
        options=dict(options),
        dry=dry,
        target=target,
        command=command,
        versions=versions(),
        machine=_machine(recipe),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    _check_options(about)
    return replace(about, recipe=_with_one_split(about))


def recipe_of(about: About, method: str, seed: int) -> Recipe:
    """The recipe of one run: only its method and its seed differ from the others'."""
    base = about.recipe
    own = base.method.options if base.method.name == method else {}
    known = method_options(method)
    given = {option: value for option, value in about.options.items() if option in known}
    table = base.model_dump() | {"seed": seed, "method": {"name": method, **own, **given}}
    return validate(Recipe, table, base.name)


def _methods(methods: str | Sequence[str]) -> tuple[str, ...]:
    named = methods.split(",") if isinstance(methods, str) else list(methods)
    names = tuple(dict.fromkeys(name.strip() for name in named))
    if names == ("all",):
        return tuple(METHODS)
    for name in names:
        find_method(name)
    return names


def _seeds(seeds: int | Sequence[int] | None, first: int) -> tuple[int, ...]:
    if seeds is None:
        return (first,)
    if isinstance(seeds, int):
        if seeds < 1:
            raise ConfigError(f"seeds = {seeds}: there must be at least 1")
        return tuple(range(first, first + seeds))
    chosen = tuple(dict.fromkeys(seeds))
    if not chosen or min(chosen) < 0:
        raise ConfigError(f"seeds = {list(chosen)}: give at least one, none below 0")
    return chosen


def _check_options(about: About) -> None:
    """An option may be unknown to some of the methods, but not to all of them."""
    known = {option: name for name in about.methods for option in method_options(name)}
    for option in about.options:
        if option == "name":
            raise ConfigError("method.name: a comparison takes its methods from --methods")
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"method.{option}: none of {', '.join(about.methods)} has this option; "
                f"{hint}they have {', '.join(sorted(known)) or 'none'}"
            )


def _with_one_split(about: About) -> Recipe:
    """The recipe, with the split in it where methods would choose different ones.

    The paper's objective does not look at the method; the measured one counts the auxiliary
    network. Then FedOptima's choice holds for all, or the first one's that splits.
    """
    recipe = about.recipe
    splitting = [
        name for name in about.methods if find_method(name)(1).training is not ServerTraining.NONE
    ]
    if recipe.split.objective == "paper" or recipe.split.at is not None or len(splitting) < 2:
        return recipe
    for name in sorted(splitting, key=lambda name: name != REFERENCE):
        with suppress(ConfigError):  # its own run will report it; another method's choice will do
            at = prepare(recipe_of(about, name, about.seeds[0]), dry=about.dry).plan().split
            return recipe.model_copy(update={"split": recipe.split.model_copy(update={"at": at})})
    return recipe


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _machine(recipe: Recipe) -> str:
    kind = f"{platform.system()} {platform.machine()}, {cores()} cores"
    where, _, index = recipe.device.partition(":")
    gpu = int(index) if index.isdigit() else 0
    on_gpu = where == "cuda" and gpu < torch.cuda.device_count()
    return f"{kind}, {torch.cuda.get_device_name(gpu)}" if on_gpu else kind
