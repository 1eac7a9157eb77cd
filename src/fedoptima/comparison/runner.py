"""Methods x seeds on one recipe. A comparison's folder holds an ordinary run folder for each run.

METHOD-seedN/         a run
comparison.json       what is compared; at the end with all figures
comparison.md         the table
curves.csv            one line for each evaluation of each run

All runs share what the recipe and the seed fix: initial weights, partition, augmentation, schedule,
fleet, and the split of those methods that split.
"""

from __future__ import annotations

import csv
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedoptima.comparison.process_pool import Order, PoolObserver, RunState, run_all
from fedoptima.comparison.result import Comparison
from fedoptima.comparison.rows import Run, read_run
from fedoptima.comparison.spec import About, cores, describe, recipe_of
from fedoptima.config.load import as_recipe
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.registry import assumption
from fedoptima.experiments.run_directory import make_folder
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.named_code import ANY_CODE, AllowedCode, allow
from fedoptima.trace.plain_files import read_plain, refuse_links
from fedoptima.trace.run_folder import RunFiles, write_whole

LOG = logging.getLogger("fedoptima.comparison")


def compare(
    recipe: Recipe | str | Path,
    *,
    methods: str | Sequence[str] = "all",
    seeds: int | Sequence[int] | None = None,
    options: Mapping[str, object] | None = None,
    jobs: int | None = None,
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

    ``seeds``: how many, counted up from the recipe's, or which. ``options`` go to those methods
    that have them; the recipe's own ``[method]`` options only to the method it names. ``jobs``
    processes run at a time (default: one per core), each with one thread unless the recipe says
    otherwise, so that results do not depend on it. ``target``: the accuracy whose time is taken;
    by default 99 % of FedOptima's best. A run that fails is reported; the others continue.

    Processes are spawned: a script calls this under ``if __name__ == "__main__":``. With ``out``
    every run leaves its folder there, and `resume_comparison` resumes it after a kill.
    """
    base = as_recipe(recipe)
    if device is not None:
        base = base.model_copy(update={"device": device})
    about = describe(
        base,
        methods=methods,
        seeds=seeds,
        options=options or {},
        dry=dry,
        target=target,
        command=command,
    )
    workers = _workers(about.recipe, jobs)
    if dry and (assumed := assumption(base.data.name, base.data.directory)):
        LOG.warning(assumed)
    with _folder(out) as folder:
        write_whole(folder / "comparison.json", json.dumps({"about": about.to_json()}, indent=1))
        comparison = _run_missing(
            about, folder, ANY_CODE, workers, checkpoint_every, observer, interrupted
        )
    return comparison if out is not None else replace(comparison, directory=None)


def resume_comparison(
    directory: str | Path,
    *,
    jobs: int | None = None,
    allow_modules: Sequence[str] = (),
    checkpoint_every: float = 60.0,
    observer: PoolObserver = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Keep the runs that are finished, resume those that are not, start those that are missing.

    Code that the folder's files name ("package.module:function") is loaded only from the packages
    in ``allow_modules``.
    """
    code = allow(allow_modules)
    refuse_links(Path(directory))
    about = read_about(directory)
    workers = _workers(about.recipe, jobs)
    return _run_missing(
        about, Path(directory), code, workers, checkpoint_every, observer, interrupted
    )


def read_about(directory: str | Path) -> About:
    path = Path(directory) / "comparison.json"
    if not path.is_file():
        raise ConfigError(f"{directory}: no comparison found here ({path.name} is missing)")
    try:
        return About.from_json(json.loads(read_plain(path))["about"], str(path))
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path}: damaged ({error}); start a new comparison") from error


# ---- the runs --------------------------------------------------------------------------------


def _run_missing(
    about: About,
    folder: Path,
    code: AllowedCode,
    workers: int,
    checkpoint_every: float,
    observer: PoolObserver,
    interrupted: Callable[[], bool],
) -> Comparison:
    # Seed by seed: a comparison that is stopped early has some complete rows.
    pairs = [(method, seed) for seed in about.seeds for method in about.methods]
    orders = {
        (method, seed): Order(
            recipe_of(about, method, seed),
            folder / f"{method}-seed{seed}",
            about.dry,
            checkpoint_every,
            code,
        )
        for method, seed in pairs
    }
    finished = {pair for pair in pairs if RunFiles(orders[pair].directory).over}
    kept = [RunState(*pair, phase="done", share=1.0) for pair in pairs if pair in finished]
    states = run_all(
        [order for pair, order in orders.items() if pair not in finished],
        jobs=workers,
        observer=lambda states: observer((*kept, *states)),
        interrupted=interrupted,
    )
    if any(state.phase in ("stopped", "waiting") for state in states):
        raise Interrupted(f"the comparison in {folder} was stopped")
    errors = {(state.method, state.seed): state.error for state in states}
    by_method = sorted(pairs, key=lambda pair: about.methods.index(pair[0]))
    runs = [_read(pair, orders[pair].directory, errors.get(pair)) for pair in by_method]
    comparison = Comparison(about, tuple(runs), folder)
    _write_result(comparison, folder)
    return comparison


def _read(pair: tuple[str, int], directory: Path, error: str | None) -> Run:
    if error is not None:
        return Run(*pair, error=error)
    return read_run(*pair, json.loads(RunFiles(directory).summary.read_text()))


def _write_result(comparison: Comparison, folder: Path) -> None:
    with (folder / "curves.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "seed", "seconds", "epochs", "accuracy"))
        for run in comparison.runs:
            for at in run.curve:
                writer.writerow((run.method, run.seed, at.seconds, at.epochs, at.accuracy))
    write_whole(folder / "comparison.md", comparison.to_markdown())
    write_whole(folder / "comparison.json", comparison.to_json())


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    if out is None:
        with tempfile.TemporaryDirectory(prefix="fedoptima-") as temporary:
            yield Path(temporary)
        return
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(
            f"{path}: exists already; choose another --out, or resume it with --resume {path}"
        )
    make_folder(path)
    yield path


def _workers(recipe: Recipe, jobs: int | None) -> int:
    if jobs is None:
        return max(1, cores() // (recipe.threads or 1))
    if jobs < 1:
        raise ConfigError(f"jobs = {jobs}: must be at least 1")
    return jobs
