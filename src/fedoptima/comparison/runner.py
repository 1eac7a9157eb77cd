"""Methods x seeds on one recipe, and x varied settings in a sweep.

All runs share what the recipe and the seed fix: initial weights, partition, augmentation, schedule,
fleet, and the split of those methods that split.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedoptima.comparison.cases import Case
from fedoptima.comparison.execution import Order, RunState, workers_of
from fedoptima.comparison.folder import check_earlier, open_folder, read_about, write_result
from fedoptima.comparison.pool import Pool, PoolObserver, run_all
from fedoptima.comparison.process_pool import ProcessPool
from fedoptima.comparison.ray_pool import RayPool, RayShare
from fedoptima.comparison.result import Comparison
from fedoptima.comparison.rows import Run, read_run
from fedoptima.comparison.spec import About, Methods, cores, describe, recipe_of
from fedoptima.config.load import as_recipe
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.registry import assumption
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.named_code import ANY_CODE, AllowedCode, allow
from fedoptima.trace.plain_files import refuse_links
from fedoptima.trace.run_folder import RunFiles, write_whole

LOG = logging.getLogger("fedoptima.comparison")

On = Literal["processes", "ray"] | RayShare


@dataclass(frozen=True)
class Execution:
    """How runs are executed. None of it changes a result."""

    jobs: int | None = None
    on: On = "processes"
    checkpoint_every: float = 60.0  # seconds
    observer: PoolObserver = lambda _: None
    interrupted: Callable[[], bool] = lambda: False

    def pool(self, recipe: Recipe, folder: Path) -> Pool:
        jobs = self.jobs
        if jobs is not None and jobs < 1:
            raise ConfigError(f"jobs = {jobs}: must be at least 1")
        if self.on == "processes":
            each = (recipe.threads or 1) * workers_of(recipe)
            return ProcessPool(jobs or max(1, cores() // each))
        if self.on != "ray" and not isinstance(self.on, RayShare):
            raise ConfigError(f"on = {self.on!r}: use 'processes' or 'ray'")
        share = self.on if isinstance(self.on, RayShare) else RayShare()
        return RayPool(share.for_recipe(recipe), jobs, folder)


def compare(
    recipe: Recipe | str | Path,
    *,
    methods: Methods = "all",
    seeds: int | Sequence[int] | None = None,
    options: Mapping[str, object] | None = None,
    jobs: int | None = None,
    on: On = "processes",
    target: float | None = None,
    device: str | None = None,
    dry: bool = False,
    out: str | Path | None = None,
    checkpoint_every: float = 60.0,
    command: str | None = None,
    observer: PoolObserver = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Train with several methods on the same recipe and set their figures side by side.

    ``methods``: their names, or functions that make a `fedoptima.methods.Method`, which the
    processes of the runs import by name.

    ``seeds``: how many, counted up from the recipe's, or which. ``options`` go to those methods
    that have them, or to one alone (``{"pipar.micro_batches": 10}``); the recipe's own ``[method]``
    options only to the method it names. ``jobs`` processes run at a time (default: one per core),
    each with one thread unless the recipe says otherwise, so that results do not depend on it;
    ``on="ray"`` runs on a Ray cluster instead. ``target``: the accuracy whose time is taken; by
    default 99 % of FedOptima's best. A run that fails is reported; the others continue.

    Processes are spawned: a script calls this under ``if __name__ == "__main__":``. With ``out``
    every run leaves its folder there, and `resume_comparison` resumes it after a kill.
    """
    execution = Execution(jobs, on, checkpoint_every, observer, interrupted)
    base = _base(recipe, device)
    about = describe(
        base,
        methods=methods,
        seeds=seeds,
        options=options or {},
        dry=dry,
        target=target,
        command=command,
    )
    return _run_new(about, execution, out)


def sweep(
    recipe: Recipe | str | Path,
    vary: Mapping[str, Sequence[object]],
    *,
    methods: Methods | None = None,
    seeds: int | Sequence[int] | None = None,
    options: Mapping[str, object] | None = None,
    jobs: int | None = None,
    on: On = "processes",
    target: float | None = None,
    device: str | None = None,
    dry: bool = False,
    out: str | Path | None = None,
    checkpoint_every: float = 60.0,
    command: str | None = None,
    observer: PoolObserver = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Run a recipe with all combinations of varied settings, methods and seeds; one table.

    ``vary``: values by key of the recipe (``{"fleet.scale": [1, 0.3]}``), by option of whichever
    methods have it (``"method.activation_cap"``), or of one method alone
    (``"pipar.micro_batches"``). A method is run once where what is varied does not reach it.
    ``methods``: by default the recipe's own. All else as in `compare`.

    ``out`` may be the folder of an earlier sweep of the same recipe: its finished runs are kept,
    so a sweep can be extended by further values.
    """
    execution = Execution(jobs, on, checkpoint_every, observer, interrupted)
    base = _base(recipe, device)
    if not vary:
        raise ConfigError("nothing is varied; for example: --vary method.activation_cap=4,8,32")
    about = describe(
        base,
        methods=methods or (base.method.name,),
        seeds=seeds,
        options=options or {},
        dry=dry,
        target=target,
        command=command,
        vary=vary,
    )
    return _run_new(about, execution, out)


def resume_comparison(
    directory: str | Path,
    *,
    jobs: int | None = None,
    on: On = "processes",
    allow_modules: Sequence[str] = (),
    checkpoint_every: float = 60.0,
    observer: PoolObserver = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Keep the runs that are finished, resume those that are not, start those that are missing.

    Of a comparison or a sweep. Code that the folder's files name ("package.module:function") is
    loaded only from the packages in ``allow_modules``.
    """
    code, folder = allow(allow_modules), Path(directory)
    refuse_links(folder)
    about = read_about(folder)
    execution = Execution(jobs, on, checkpoint_every, observer, interrupted)
    return _run_missing(about, folder, code, execution, execution.pool(about.recipe, folder))


# ---- the runs --------------------------------------------------------------------------------


def _base(recipe: Recipe | str | Path, device: str | None) -> Recipe:
    base = as_recipe(recipe)
    return base if device is None else base.model_copy(update={"device": device})


def _run_new(about: About, execution: Execution, out: str | Path | None) -> Comparison:
    data = about.recipe.data
    if about.dry and (assumed := assumption(data.name, data.directory)):
        LOG.warning(assumed)
    with open_folder(about, out) as folder:
        pool = execution.pool(about.recipe, folder)
        check_earlier(about, folder)
        text = json.dumps({"about": about.to_json()}, indent=1)
        write_whole(folder / f"{about.kind}.json", text)
        comparison = _run_missing(about, folder, ANY_CODE, execution, pool)
    return comparison if out is not None else replace(comparison, directory=None)


def _run_missing(
    about: About, folder: Path, code: AllowedCode, execution: Execution, pool: Pool
) -> Comparison:
    # Seed by seed: what is stopped early has some complete rows.
    pairs = [(case, seed) for seed in about.seeds for case in about.cases]
    orders = [
        Order(
            recipe_of(about, case, seed),
            folder / case.folder(seed),
            about.dry,
            execution.checkpoint_every,
            code,
            case.label,
        )
        for case, seed in pairs
    ]
    finished = {order.directory for order in orders if RunFiles(order.directory).over}
    missing = [order for order in orders if order.directory not in finished]
    kept = [
        replace(RunState.of(order), phase="done", share=1.0)
        for order in orders
        if order.directory in finished
    ]
    states = run_all(
        missing,
        pool,
        observer=lambda states: execution.observer((*kept, *states)),
        interrupted=execution.interrupted,
    )
    if any(state.phase in ("stopped", "waiting") for state in states):
        raise Interrupted(f"the {about.kind} in {folder} was stopped")
    errors = {o.directory: s.error for o, s in zip(missing, states, strict=True)}
    runs = [
        _read(case, seed, folder / case.folder(seed), errors)
        for case in about.cases
        for seed in about.seeds
    ]
    comparison = Comparison(about, tuple(runs), folder)
    write_result(comparison, folder)
    return comparison


def _read(case: Case, seed: int, directory: Path, errors: Mapping[Path, str | None]) -> Run:
    if (error := errors.get(directory)) is not None:
        return Run(case.method, seed, error=error, settings=dict(case.settings))
    return read_run(case, seed, json.loads(RunFiles(directory).summary.read_text()))
