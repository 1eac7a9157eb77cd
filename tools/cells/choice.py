"""What is trained in each cell: the form of FedOptima+ and the strongest baselines, by dry runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedoptima.comparison.cases import Case
from fedoptima.comparison.dry_pace import Conditions, cut_of, prepared
from fedoptima.comparison.regions import number
from fedoptima.comparison.rescaling import same_on_every_fleet
from fedoptima.comparison.sensitivity import Grid, be_quiet, measure_cell
from fedoptima.config.load import of_method, validate
from fedoptima.config.schema import Recipe
from fedoptima.core.stopping import StopRule
from fedoptima.methods.fedoptima_plus import NAME as PLUS
from fedoptima.methods.registry import COMPARED
from fedoptima.reproduction.planned import Planned
from fedoptima.trace.run_folder import write_whole
from tools.lanes import pool_of, results_of
from tools.plus_grid import methods

BASELINES = tuple(name for name in COMPARED if name != "fedoptima")
STRONGEST = 2
PARTS = 4  # of PiPar's batches, where it is trained

Plain = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A job for a lane: what to train in one cell."""

    recipe: Recipe
    conditions: Conditions

    @property
    def name(self) -> str:
        return f"devices x {number(self.conditions.devices)}, {self.conditions.mbps:g} Mbps"


def recipe_for(recipe: Recipe, method: str, options: Mapping[str, object]) -> Recipe:
    """With what the recipe has for this method; FedOptima+ has FedOptima's unless it has its own.
    An evaluation every epoch, so that times to a target are not rounded much."""
    own = method if method in recipe.methods or method != PLUS else "fedoptima"
    beside = recipe.method.options if recipe.method.name == own else {}
    table = recipe.model_dump(exclude_unset=True) | {"method": {"name": own, **beside}}
    plain = of_method(validate(Recipe, table, recipe.name)).model_dump(exclude_unset=True)
    given = {key: value for key, value in plain["method"].items() if key != "name"}
    plain["method"] = {"name": method, **given, **options}
    plain["training"] = plain.get("training", {}) | {"evaluate_every": 1.0}
    return validate(Recipe, plain, recipe.name)


def choose(cell: Cell) -> Plain:
    """The form of FedOptima+, the strongest baselines with the seconds of a sample, fastest first,
    and the samples of an epoch."""
    be_quiet()
    recipe, conditions = cell.recipe, cell.conditions
    found: list[tuple[float, str, Mapping[str, object]]] = []
    for label, (method, options) in methods(BASELINES).items():
        if method != PLUS:
            own = recipe_for(recipe, method, options)
            pace = measure_cell(own, {label: (method, own.method.options)}, conditions)[label]
            if pace is not None:
                found.append((pace, method, options))
    best: dict[str, Plain] = {}
    for pace, method, options in sorted(found, key=lambda one: one[0]):
        best.setdefault(method, {"method": method, "options": dict(options), "pace": pace})
    strongest = list(best.values())[:STRONGEST]
    for one in filter(_depends_on_cut, strongest):
        own = recipe_for(recipe, one["method"], one["options"])
        ready = prepared(own, one["method"], own.method.options, conditions, StopRule(rounds=1))
        one["split"], _ = cut_of(ready)
    plus = recipe_for(recipe, PLUS, {})
    ready = prepared(plus, PLUS, plus.method.options, conditions, StopRule(rounds=1))
    planned = ready.recipe
    return {
        "plus": {"options": planned.method.options, "split": planned.split.at},
        "baselines": strongest,
        "samples": sum(ready.samples.values()),
    }


def _depends_on_cut(baseline: Plain) -> bool:
    """What is coded at the cut loses something else at another one."""
    return "codec" in baseline["options"]


def choices(
    recipe: Recipe, grid: Grid, file: Path, jobs: int, deadline: float
) -> dict[Conditions, Plain]:
    """Of every cell; what is in the file is not chosen again."""
    known: dict[str, Plain] = json.loads(file.read_text()) if file.is_file() else {}
    cells = [Cell(recipe, conditions) for conditions in grid.cells()]
    missing = [cell for cell in cells if cell.name not in known]
    if missing:
        with pool_of(jobs) as pool:
            for cell, chosen in results_of(choose, missing, pool, jobs, deadline):
                known[cell.name] = chosen
                write_whole(file, json.dumps(known, indent=1, default=_plain))
                told = [one["method"] for one in chosen["baselines"]]
                print(f"{cell.name}: {PLUS} against {' and '.join(told)}", flush=True)
    # As a file has it, so that a run is the same run whenever it is planned.
    known = json.loads(json.dumps(known, default=_plain))
    return {cell.conditions: known[cell.name] for cell in cells if cell.name in known}


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else vars(value)


@dataclass(frozen=True)
class Entry:
    """A method in a cell, for one length of schedule and one seed."""

    conditions: Conditions
    label: str
    method: str
    epochs: float
    run: Planned
    seconds_per_epoch: float | None  # where the run was trained on another fleet


def entries(
    recipe: Recipe,
    chosen: Mapping[Conditions, Plain],
    *,
    epochs: Sequence[float],
    seeds: Sequence[int],
) -> Iterator[Entry]:
    """Seed by seed, the shortest schedules first: what is stopped early has some whole rows."""
    for seed in seeds:
        for length in epochs:
            for conditions, choice in chosen.items():
                form = choice["plus"]
                own = recipe_for(recipe, PLUS, form["options"])
                run = _run(_cut_at(own, form["split"]), PLUS, {}, conditions, length, seed)
                yield Entry(conditions, PLUS, PLUS, length, run, None)
                for one in choice["baselines"]:
                    method, options = one["method"], one["options"]
                    there = None if same_on_every_fleet(method) else conditions
                    parts = {"micro_batches": PARTS} if method == "pipar" else {}
                    trained = {k: v for k, v in options.items() if k != "own_split"} | parts
                    own = recipe_for(recipe, method, trained)
                    if there is None and _depends_on_cut(one):
                        own = _cut_at(own, one["split"])
                    run = _run(own, method, trained, there, length, seed)
                    pace = None if there else one["pace"] * choice["samples"]
                    coded = ", int8" if "int8" in options.values() else ""
                    yield Entry(conditions, method + coded, method, length, run, pace)


def _cut_at(recipe: Recipe, split: int | str) -> Recipe:
    return recipe.model_copy(update={"split": recipe.split.model_copy(update={"at": split})})


def _run(
    recipe: Recipe,
    method: str,
    options: Mapping[str, object],
    conditions: Conditions | None,
    epochs: float,
    seed: int,
) -> Planned:
    """``conditions``: None for the recipe's own fleet."""
    table = recipe.model_dump(exclude_unset=True) | {"seed": seed, "stop": {"epochs": epochs}}
    settings: dict[str, object] = {f"method.{key}": value for key, value in options.items()}
    if conditions is not None:
        assert recipe.fleet is not None
        table["fleet"] = conditions.of(recipe.fleet)
        settings |= {"devices": number(conditions.devices), "mbps": conditions.mbps}
    case = Case(method, tuple((settings | {"stop.epochs": epochs}).items()))
    return Planned(f"{recipe.name}_cells", "training", case, validate(Recipe, table, recipe.name))
