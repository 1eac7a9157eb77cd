"""All runs of a comparison or sweep: those that are missing are executed, then all are read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedoptima.comparison.cases import Case
from fedoptima.comparison.execution import Order, RunState, workers_of
from fedoptima.comparison.folder import about_file, check_earlier, open_folder, write_result
from fedoptima.comparison.pool import Pool, PoolObserver, run_all
from fedoptima.comparison.process_pool import ProcessPool
from fedoptima.comparison.ray_pool import RayPool, RayShare
from fedoptima.comparison.result import Comparison
from fedoptima.comparison.rows import Run, read_run
from fedoptima.comparison.spec import About, cores, recipe_of
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.registry import assumption
from fedoptima.display.views import runs_view
from fedoptima.experiments.given import Given
from fedoptima.experiments.python_call import AsksToStop, resume_call, stoppable
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.trace.run_folder import RunFiles, write_whole

LOG = logging.getLogger("fedoptima.comparison")

RESUME = "resume_comparison"  # the public function

On = Literal["processes", "ray"] | RayShare


@dataclass(frozen=True)
class Execution:
    """How runs are executed. None of it changes a result."""

    jobs: int | None = None
    on: On = "processes"
    checkpoint_every: float = 60.0  # seconds
    observer: PoolObserver = lambda _: None
    interrupted: Callable[[], bool] = lambda: False

    def pool(self, recipe: Recipe, given: Given, folder: Path) -> Pool:
        jobs = self.jobs
        if jobs is not None and jobs < 1:
            raise ConfigError(f"jobs = {jobs}: must be at least 1")
        if self.on == "processes":
            threads = recipe.threads or 1
            each = threads * workers_of(recipe)
            return ProcessPool(jobs or max(1, cores() // each), given, threads=threads)
        if self.on != "ray" and not isinstance(self.on, RayShare):
            raise ConfigError(f"on = {self.on!r}: use 'processes' or 'ray'")
        share = self.on if isinstance(self.on, RayShare) else RayShare()
        return RayPool(share.for_recipe(recipe), jobs, folder, given)


def run_new(about: About, given: Given, execution: Execution, out: str | Path | None) -> Comparison:
    data = about.recipe.data
    if about.dry and (assumed := assumption(data.name, data.directory)):
        LOG.warning(assumed)
    with open_folder(about, out) as folder:
        pool = execution.pool(about.recipe, given, folder)
        check_earlier(about, folder)
        text = json.dumps({"about": about.to_json()}, indent=1)
        write_whole(folder / f"{about.kind}.json", text)
        comparison = run_missing(about, folder, execution, pool)
    return comparison if out is not None else replace(comparison, directory=None)


def run_missing(about: About, folder: Path, execution: Execution, pool: Pool) -> Comparison:
    # Seed by seed: what is stopped early has some complete rows.
    pairs = [(case, seed) for seed in about.seeds for case in about.cases]
    orders = [
        Order(
            recipe_of(about, case, seed),
            folder / case.folder(seed),
            about.dry,
            execution.checkpoint_every,
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


@contextmanager
def watched(
    execution: Execution,
    recipe: Recipe,
    given: Given,
    out: str | Path | None,
    progress: bool | None,
    observer: PoolObserver | None,
    interrupted: AsksToStop | None,
) -> Iterator[Execution]:
    """With progress shown, and Ctrl-C."""

    def way_on() -> str:
        if out is None or about_file(out) is None:
            return ""
        return resume_call(RESUME, out, recipe, given)

    title = f"{recipe.name}{f', in {out}' if out is not None else ''}"
    with stoppable(interrupted, out, way_on) as asked, runs_view(title, progress) as view:

        def show(states: Sequence[RunState]) -> None:
            view.show(states)
            if observer is not None:
                observer(states)

        yield replace(execution, observer=show, interrupted=asked)
