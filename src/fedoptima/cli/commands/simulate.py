"""``fedoptima simulate``: train on a virtual clock, or resume a run."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedoptima.cli.options as options
from fedoptima.cli.errors import INTERRUPTED
from fedoptima.cli.logs import log_to_console
from fedoptima.cli.recipe_options import (
    allowance,
    extension,
    naming,
    number_or_auto,
    read_recipe,
    refuse_with_resume,
)
from fedoptima.cli.tracking_options import RunTracking, TrackingOptions
from fedoptima.cli.views.outcome import show_result
from fedoptima.core.errors import ConfigError
from fedoptima.display.console import stderr
from fedoptima.display.interrupt import Interrupt
from fedoptima.display.progress import view_of
from fedoptima.trace.description import Mode
from fedoptima.trace.run_folder import RunFiles

if TYPE_CHECKING:
    from fedoptima.config.schema import Recipe
    from fedoptima.experiments.result import Result


def simulate(
    recipe: options.RecipeFile = None,
    method: options.Method = None,
    sets: options.Sets = None,
    seed: options.Seed = None,
    device: options.ComputeDevice = None,
    workers: options.Workers = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The run's folder, new or empty.  [default: a fresh runs/NAME-METHOD-seedN]",
        ),
    ] = None,
    dry: options.Dry = False,
    run: options.ResumedRun = None,
    extend: options.Extend = None,
    allow_modules: options.AllowModules = None,
    checkpoint_every: options.CheckpointEvery = 60.0,
    metrics_port: options.MetricsPort = None,
    tensorboard: options.TensorBoardFolder = None,
    mlflow: options.MLflowURI = None,
    quiet: options.Quiet = False,
    as_json: options.AsJSON = False,
) -> None:
    """Train on a virtual clock.

    Ctrl-C stops a run at a point from which --resume continues.
    """
    tracking = TrackingOptions(metrics_port, tensorboard, mlflow)
    if run is not None:
        asked = {"RECIPE": recipe, "--method": method, "--set": sets, "--seed": seed}
        asked |= {"--device": device, "--out": out, "--dry": dry or None}
        refuse_with_resume(asked)
        result = _resume(
            run, extend, allow_modules or (), workers, checkpoint_every, tracking, quiet
        )
    elif extend:
        raise ConfigError("--extend needs --resume RUN: which run should continue?")
    elif recipe is not None:
        from fedoptima.experiments.fresh_directory import fresh_directory

        changed = read_recipe(
            recipe, method=method, sets=sets, seed=seed, device=device, workers=workers
        )
        name = f"{changed.name}-{changed.method.name}-seed{changed.seed}"
        folder = out or fresh_directory(Path("runs"), name)
        with naming(recipe, folder):
            result = _start(changed, folder, dry, checkpoint_every, tracking, quiet)
    else:
        raise ConfigError("no RECIPE; for example: fedoptima simulate recipes/demo_digits.toml")
    if as_json:
        typer.echo(result.to_json())
    else:
        show_result(result)


def _start(
    recipe: Recipe,
    folder: Path,
    dry: bool,
    checkpoint_every: float,
    tracking: TrackingOptions,
    quiet: bool,
) -> Result:
    from fedoptima.experiments.simulation import simulate as start_run

    start = partial(start_run, recipe, out=folder, dry=dry, checkpoint_every=checkpoint_every)
    tracked = partial(tracking.open, recipe, folder, mode=Mode.SIMULATED, resumed=False)
    return _watched(start, recipe, folder, tracked, quiet)


def _resume(
    folder: Path,
    extend: list[str] | None,
    allowed: Sequence[str],
    workers: str | None,
    checkpoint_every: float,
    tracking: TrackingOptions,
    quiet: bool,
) -> Result:
    from fedoptima.experiments.run_directory import RunDirectory
    from fedoptima.experiments.simulation import resume as resume_run

    run, recipe, _ = RunDirectory.open(folder)
    recipe, changes = extension(run, recipe, extend)
    if run.over and not changes:
        return run.read_result()
    resumed = partial(
        resume_run,
        folder,
        extend=changes,
        allow_modules=allowed,
        workers=number_or_auto(workers or "auto"),
        checkpoint_every=checkpoint_every,
    )
    tracked = partial(tracking.open, recipe, folder, mode=Mode.SIMULATED, resumed=True)
    return _watched(resumed, recipe, folder, tracked, quiet)


def _watched(
    run: Callable[..., Result],
    recipe: Recipe,
    folder: Path,
    tracking: Callable[..., RunTracking],
    quiet: bool,
) -> Result:
    from fedoptima.experiments.simulated_run import Interrupted

    try:
        with (
            Interrupt() as interrupted,
            log_to_console(stderr(), logging.WARNING),
            tracking(quiet=quiet) as tracked,
            view_of(recipe, quiet=quiet, folder=folder) as view,
        ):
            observer = tracked.simulation_observer(view.training)
            result = run(
                progress=False, observer=observer, reading=view.reading, interrupted=interrupted
            )
            tracked.finish(result)
            return result
    except (Interrupted, KeyboardInterrupt) as stop:
        begun = RunFiles(folder).begun
        again = ["fedoptima", "simulate", "--resume", str(folder), *allowance(recipe)]
        way_on = f"; resume with: {shlex.join(again)}" if begun else ""
        stderr().print(f"stopped{way_on}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from stop
