"""The runs that figures need, each with an id that its content determines.

Two figures that need the same run share it. What changes no result (the machine, threads, where the
data are) is not part of the id, so runs made on several machines can be put together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from fedoptima.comparison.cases import Case
from fedoptima.comparison.protocols import dry_time, equal_time, until_convergence
from fedoptima.comparison.settings import METHOD, reaches_all
from fedoptima.comparison.spec import About, describe, recipe_of
from fedoptima.config.load import read_toml, set_key, unset_in_methods, validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.given import Given
from fedoptima.methods.registry import find_method, options_of
from fedoptima.reproduction.catalogue import Catalogue, Figure, Kind, Protocol
from fedoptima.sim.fleet import presets

_NO_PART = {"name", "device", "threads", "deploy", "method"}  # of what a run is
# A dry run is the same everywhere if the data set is assumed to be complete, whatever there is of
# it on a machine's disk.
_NO_DATA = Path(__file__).parent
# What learns better takes as long: other rates make no other dry run.
_ONLY_LEARNING = {"learning_rate", "weight_decay", "nesterov", "reset_on_load", "schedule"}
_ONLY_LEARNING |= {"evaluate_every", "alpha", "server_learning_rate"}
_ONLY_TIMES = {"own_split", "micro_batches"}  # change PiPar's, and not what it learns
_FEW = 3.0  # epochs
SEEDS = 3


@dataclass(frozen=True)
class Planned:
    workload: str
    kind: Kind
    case: Case
    recipe: Recipe
    learned_by: str = ""  # the id of the run that is trained instead; see `reproduction.retiming`

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def label(self) -> str:
        return f"{self.workload}: {self.case.label}"

    @property
    def folder(self) -> str:
        return f"{self.workload}-{self.case.folder(self.seed)}-{self.id}"

    @cached_property
    def id(self) -> str:
        # Without defaults: a key that is added later leaves the ids as they are.
        plain = self.recipe.model_dump(mode="json", exclude_defaults=True, exclude=_NO_PART)
        plain["data"].pop("directory", None)
        plain["fleet"] = _with_preset(plain["fleet"])
        method = self.recipe.method
        defaults = options_of(find_method(method.name))
        options = {key: v for key, v in method.options.items() if defaults.get(key) != v}
        if self.kind != "training":
            plain |= _timed({"training": plain.pop("training", {})})
            options = {key: v for key, v in options.items() if key not in _ONLY_LEARNING}
        content = json.dumps([self.kind, plain, method.name, options], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Choice:
    """What is asked for besides the figures."""

    seeds: int = SEEDS
    device: str | None = None  # of training
    data: str | None = None


def runs_of(catalogue: Catalogue, figure: Figure, choice: Choice) -> list[Planned]:
    """Seed by seed: what is stopped early has some complete rows."""
    found = [
        Planned(workload, figure.kind, case, recipe_of(about, case, seed))
        for workload in figure.workloads
        for about in [_about(catalogue, figure, workload, choice)]
        for case in about.cases
        for seed in about.seeds
    ]
    return sorted(_less_trained(figure, found), key=lambda run: run.seed)


def _less_trained(figure: Figure, runs: Sequence[Planned]) -> Iterator[Planned]:
    """Those that learn what another one does, and say so, name it."""
    known = {(run.workload, run.seed, run.case.label): run for run in runs}
    for label in (*figure.learns_as, *figure.learns_as.values()):
        if all(label != run.case.label for run in runs):
            there = ", ".join(sorted({run.case.label for run in runs}))
            raise ConfigError(f"learns_as: {figure.title!r} has no {label!r}; there are {there}")
    for run in runs:
        label = figure.learns_as.get(run.case.label, run.case.label)
        other = known[run.workload, run.seed, label]
        same = other is not run and _training_of(other) == _training_of(run)
        yield replace(run, learned_by=other.id) if same else run


def _training_of(run: Planned) -> object:
    """All that what is learned behind a barrier depends on: not where the model is cut."""
    recipe = run.recipe
    options = {key: v for key, v in recipe.method.options.items() if key not in _ONLY_TIMES}
    return recipe.model_dump(exclude={*_NO_PART, "split", "methods"}), options


def queue(
    catalogue: Catalogue, figures: Mapping[str, Figure], choice: Choice
) -> dict[str, list[Planned]]:
    """The runs of each figure."""
    return {name: runs_of(catalogue, figure, choice) for name, figure in figures.items()}


def _about(catalogue: Catalogue, figure: Figure, workload: str, choice: Choice) -> About:
    described = catalogue.workloads[workload]
    path = catalogue.folder / described.recipe
    table = read_toml(path)
    changes = {**described.set, **figure.set}
    for key, value in changes.items():
        if reaches_all(key):
            set_key(table, key, value)
            unset_in_methods(table, key)
    if figure.kind != "training":
        set_key(table, "data.directory", str(_NO_DATA))
    elif choice.data is not None:
        set_key(table, "data.directory", choice.data)
    if choice.device is not None and figure.kind == "training":
        set_key(table, "device", choice.device)
    return describe(
        _under(figure.protocol, validate(Recipe, table, str(path))),
        Given(),
        methods=figure.methods,
        seeds=min(choice.seeds, figure.seeds or choice.seeds),
        options={
            key.removeprefix(f"{METHOD}."): value
            for key, value in changes.items()
            if not reaches_all(key)
        },
        dry=figure.kind != "training",
        target=None,
        command=None,
        vary=figure.vary,
    )


def _under(protocol: Protocol, recipe: Recipe) -> Recipe:
    match protocol:
        case "epochs":
            return recipe
        case "time":
            return equal_time(recipe, _time_of(recipe.model_dump_json()))
        case "convergence":
            return until_convergence(recipe)


@lru_cache
def _time_of(plain: str) -> float:
    """What FedOptima takes for the recipe's epochs, from a dry run of a few: hours of a plan have
    to be the same on every machine, and quickly known."""
    recipe = validate(Recipe, json.loads(plain), "recipe")
    epochs = recipe.stop.epochs
    if epochs is None:
        raise ConfigError(f"{recipe.name}: protocol = 'time' needs stop.epochs")
    few = min(_FEW, epochs)
    data = recipe.data.model_copy(update={"directory": str(_NO_DATA)})
    stop = replace(recipe.stop, epochs=few)
    seconds = dry_time(recipe.model_copy(update={"stop": stop, "device": "cpu", "data": data}))
    return float(f"{seconds * epochs / few:.3g}")


def _timed(plain: Mapping[str, object]) -> dict[str, object]:
    """Without what changes no time; all keys of a table may be so."""
    found = {
        key: _timed(value) if isinstance(value, dict) else value
        for key, value in plain.items()
        if key not in _ONLY_LEARNING
    }
    return {key: value for key, value in found.items() if value != {}}


def _with_preset(fleet: dict[str, object]) -> dict[str, object]:
    """With what the preset's file says: another fleet of the same name makes another run."""
    name = fleet.get("preset")
    path = presets().get(str(name), Path(str(name)))
    return {**fleet, "preset": read_toml(path)} if path.is_file() else fleet


def distinct(planned: Sequence[Sequence[Planned]]) -> list[Planned]:
    """Every run that has to be made, once: dry ones first, then seed by seed."""
    runs = {run.id: run for figure in planned for run in figure if not run.learned_by}
    return sorted(runs.values(), key=lambda run: (run.kind == "training", run.seed))
