"""What is compared: which methods, which varied settings, which seeds, and what all of them share.

A run's recipe is the comparison's with another method and seed, so whatever derives from the rest
is the same for all: initial weights, partition, augmentation, schedule, fleet. The split is too.
A sweep also varies settings: then that holds for runs with the same settings.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

import torch

from fedoptima.comparison.cases import Case, cases_of
from fedoptima.comparison.settings import (
    METHOD,
    check_methods,
    check_options,
    check_varied,
    option_of,
    reaches,
    reaches_all,
    recipe_key,
)
from fedoptima.config.load import set_key, validate
from fedoptima.config.own_settings import OwnSettings, laid_over
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.method import ServerTraining
from fedoptima.experiments.describe import versions
from fedoptima.experiments.given import Given
from fedoptima.experiments.method_setup import build_method
from fedoptima.experiments.setup import prepare
from fedoptima.methods.registry import (
    COMPARED,
    PAPER_METHODS,
    Builder,
    find_method,
    method_options,
    name_of,
)
from fedoptima.named_code import ANY_CODE

Methods = str | Builder | Sequence[str | Builder]
REFERENCE = "fedoptima"  # the method that others are compared with, if it is there


@dataclass(frozen=True)
class About:
    """What was compared, with what, where and when: enough to resume or repeat it."""

    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, object]  # "X": for the methods that have it; "pipar.X": for PiPar alone
    dry: bool
    target: float | None  # as given
    command: str | None
    versions: Mapping[str, str]
    machine: str
    date: str
    # A sweep's: keys of the recipe, "method.X" or "pipar.X", each with its values.
    vary: Mapping[str, Sequence[object]] = field(default_factory=dict)
    # The options of methods in users' code, by the methods' names.
    own_options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # The split that methods share where they would choose different ones, by shared settings.
    splits: Mapping[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Also the name of its files."""
        return "sweep" if self.vary else "comparison"

    @property
    def cases(self) -> tuple[Case, ...]:
        """The rows of its table."""
        return tuple(cases_of(self.methods, self.vary, self.own_options))

    def to_json(self) -> dict[str, object]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "recipe": self.recipe.model_dump(mode="json")}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], where: str) -> About:
        # Not in files of 0.1.0.
        later: dict[str, Any] = {"vary": {}, "splits": {}, "own_options": {}}
        given = {field.name: (later | dict(plain))[field.name] for field in fields(cls)}
        recipe = validate(Recipe, given.pop("recipe"), where)
        methods, seeds = tuple(given.pop("methods")), tuple(given.pop("seeds"))
        return cls(recipe=recipe, methods=methods, seeds=seeds, **given)


def describe(
    recipe: Recipe,
    given: Given,
    *,
    methods: Methods,
    seeds: int | Sequence[int] | None,
    options: Mapping[str, object],
    dry: bool,
    target: float | None,
    command: str | None,
    vary: Mapping[str, Sequence[object]] | None = None,
) -> About:
    """Checks everything that can be checked without running anything."""
    recipe = recipe.model_copy(update={"threads": recipe.threads or 1})
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"target = {target}: an accuracy is above 0 and at most 1 (0.8 is 80 %)")
    names = chosen_methods(methods, given)
    about = About(
        recipe=recipe,
        methods=names,
        seeds=_seeds(seeds, recipe.seed),
        options=dict(options),
        dry=dry,
        target=target,
        command=command,
        versions=versions(),
        machine=machine_of(recipe),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        vary={key: list(values) for key, values in (vary or {}).items()},
        own_options={
            name: list(method_options(name, ANY_CODE, given.methods))
            for name in names
            if ":" in name or name in given.methods
        },
    )
    check_options(about.options, about.methods, about.own_options)
    check_varied(about.vary, about.options, about.methods, about.own_options)
    check_methods(recipe, about.methods, about.own_options)
    for case in about.cases:
        recipe_of(about, case, about.seeds[0])  # a key or value that no recipe takes
    return _with_one_split(about, given)


def recipe_of(about: About, case: Case | str, seed: int) -> Recipe:
    """The recipe of one run: only its method, its seed and what is varied differ from others'.

    ``case``: also just the method.
    """
    base = about.recipe
    case = Case(case) if isinstance(case, str) else case
    method, own = case.method, base.methods.get(case.method, OwnSettings())
    options = {**own.options, **(base.method.options if base.method.name == method else {})}
    table = base.model_dump() | {"seed": seed, "workers": base.workers, "methods": {}}
    if (split := about.splits.get(_shared(case).label)) is not None:
        set_key(table, "split.at", split)
    table = laid_over(table, own.tables)
    # What is meant for one method alone comes last.
    shared_first = sorted(about.options.items(), key=lambda option: "." in option[0])
    given = ((key if "." in key else f"{METHOD}.{key}", value) for key, value in shared_first)
    reaching = ((key, value) for key, value in given if reaches(key, method, about.own_options))
    for key, value in (*reaching, *case.settings):
        if (option := option_of(key)) is not None:
            options[option] = value
        else:
            set_key(table, recipe_key(key), value)
    return validate(Recipe, table | {"method": {"name": method, **options}}, base.name)


def chosen_methods(methods: Methods, given: Given) -> tuple[str, ...]:
    several = [methods] if callable(methods) else methods
    named = several.split(",") if isinstance(several, str) else several
    names = tuple(dict.fromkeys(m.strip() if isinstance(m, str) else name_of(m) for m in named))
    if names == ("all",):
        return COMPARED
    if names == ("paper",):
        return PAPER_METHODS
    for name in names:
        find_method(name, ANY_CODE, given.methods)
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


# ---- one split for all methods -------------------------------------------------------------------


def _with_one_split(about: About, given: Given) -> About:
    """With the split in it where methods would choose different ones.

    The paper's objective does not look at the method; the measured one counts the auxiliary
    network. Then FedOptima's choice holds for all, or the first one's that splits. One that is
    told to choose for itself (`pipar.own_split`) does so all the same, and for nobody else.
    """
    if not about.vary:
        at = _one_split(about, given, Case(""))
        split = about.recipe.split.model_copy(update={"at": at or about.recipe.split.at})
        return replace(about, recipe=about.recipe.model_copy(update={"split": split}))
    shared = {case.label: case for case in map(_shared, about.cases)}
    found = {label: _one_split(about, given, case) for label, case in shared.items()}
    return replace(about, splits={label: at for label, at in found.items() if at is not None})


def _one_split(about: About, given: Given, shared: Case) -> int | None:
    """None: there is nothing to settle."""
    names = [  # without those that have a split in a table of their own
        name
        for name in sorted(about.methods, key=lambda name: name != REFERENCE)
        if not about.recipe.methods.get(name, OwnSettings()).split
    ]
    every = [recipe_of(about, replace(shared, method=name), about.seeds[0]) for name in names]
    recipes = [recipe for recipe in every if _shares_split(recipe, given)]
    if len(recipes) < 2 or recipes[0].split.objective == "paper":
        return None
    if recipes[0].split.at is not None or recipes[0].split.per_device:
        return None
    for recipe in recipes:
        with suppress(ConfigError):  # its own run will report it; another method's choice will do
            return prepare(recipe, given, dry=about.dry).plan().split
    return None


def _shares_split(recipe: Recipe, given: Given) -> bool:
    with suppress(ConfigError):  # its own run will report it
        method = build_method(recipe, 1, given)
        return method.training is not ServerTraining.NONE and not method.own_split
    return False


def _shared(case: Case) -> Case:
    """What it has in common with other methods' runs: the varied keys of the recipe itself."""
    return Case("", tuple(pair for pair in case.settings if reaches_all(pair[0])))


# ---- the machine -----------------------------------------------------------------------------


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_of(recipe: Recipe) -> str:
    kind = f"{platform.system()} {platform.machine()}, {cores()} cores"
    where, _, index = recipe.device.partition(":")
    gpu = int(index) if index.isdigit() else 0
    on_gpu = where == "cuda" and gpu < torch.cuda.device_count()
    return f"{kind}, {torch.cuda.get_device_name(gpu)}" if on_gpu else kind
