"""``fedoptima tune``: each method's settings from the same grid, chosen on held-out data."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import fedoptima.cli.many_runs as many_runs
import fedoptima.cli.options as options
from fedoptima.cli.errors import FAILED
from fedoptima.cli.recipe_options import allowance, read_recipe
from fedoptima.core.errors import ConfigError
from fedoptima.display.console import plain_table, print_table, stdout

if TYPE_CHECKING:
    from fedoptima.comparison.tuning import Choice


def tune(
    recipe: options.RecipeFile = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="The methods.  [default: all]")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=A,B,C",
            help="A grid other than the default: keys of training and split, method.X, pipar.X, "
            "pipar.training.X. Repeatable: all combinations are run.",
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Epochs of each run of the search.  [default: the recipe's]"
        ),
    ] = None,
    seeds: many_runs.Seeds = None,
    seed: many_runs.SeedList = None,
    jobs: many_runs.Jobs = None,
    on: many_runs.On = many_runs.Where.processes,
    cpus: many_runs.Cpus = None,
    gpus: many_runs.Gpus = None,
    retries: many_runs.Retries = None,
    sets: many_runs.Sets = None,
    device: options.ComputeDevice = None,
    workers: options.Workers = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A new folder, or that of a search to extend.  [default: a fresh runs/NAME-tune]",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="Resume the search in this folder."),
    ] = None,
    allow_modules: options.AllowModules = None,
    checkpoint_every: options.CheckpointEvery = 60.0,
    quiet: options.Quiet = False,
) -> None:
    """Choose each method's settings from the same small grid, on held-out training data.

    The grid: three learning rates, momentum kept or reset, and the method's main option. Writes
    tuned.toml, a recipe for compare with what was chosen and what the search cost. Test data is
    not used. Finished runs are kept, as in a sweep.
    """
    execution = many_runs.Execution(
        "tune", jobs, many_runs.place(on, cpus, gpus, retries), checkpoint_every, quiet
    )
    if folder is not None:
        asked: dict[str, object] = {"RECIPE": recipe, "--vary": vary, "--methods": methods}
        asked |= {"--seeds": seeds, "--seed": seed, "--set": sets, "--epochs": epochs}
        asked |= {"--device": device, "--out": out, "--workers": workers}
        search = partial(many_runs.resume, folder, asked, allow_modules or (), execution)
    elif recipe is None:
        raise ConfigError("no RECIPE; for example: fedoptima tune recipes/demo_digits.toml")
    else:
        from fedoptima.comparison.settings import read_vary, sort_sets
        from fedoptima.comparison.spec import chosen_methods
        from fedoptima.comparison.sweep import sweep
        from fedoptima.comparison.tuning import search_grid
        from fedoptima.experiments.fresh_directory import fresh_directory
        from fedoptima.experiments.given import Given

        own, options = sort_sets(sets or [])
        changed = read_recipe(recipe, sets=own, device=device, workers=workers, several=True)
        names = chosen_methods(methods or "all", Given())
        grid = search_grid(changed, names, read_vary(vary) if vary else None, epochs=epochs)
        folder = out or fresh_directory(Path("runs"), f"{changed.name}-tune")
        begin = partial(
            sweep,
            changed,
            grid,
            methods=names,
            seeds=many_runs.one_of(seeds, seed),
            options=options,
            out=folder,
            command=shlex.join(["fedoptima", *sys.argv[1:]]),
        )
        search = partial(many_runs.watched, begin, folder, allowance(changed), execution)
    from fedoptima.comparison.tuning import clocked, write_choice

    with clocked(folder) as spent:
        swept = search()
        choices = write_choice(swept, folder, spent())
    _show(choices, folder, spent())
    for failure in swept.failures():  # a rate too large is a result of the search
        stdout().print(f"failed: {failure}", soft_wrap=True)
    if len(choices) < len(swept.about.methods):
        raise typer.Exit(FAILED)


def _show(choices: Sequence[Choice], folder: Path, wall_seconds: float) -> None:
    from fedoptima.analysis.formatting import duration
    from fedoptima.comparison.tuning import TUNED, cost, described

    console, total = stdout(), cost(choices)
    console.print(Text("chosen on data held out of training", "bold"))
    console.print()
    columns = ("method", "settings", "held out", "next", "runs", "epochs")
    table = plain_table(*columns, left=2)
    for each in choices:
        counts = (str(each.runs), f"{each.epochs:.0f}")
        settings = "\n".join(described(each))
        table.add_row(each.method, settings, *each.held_out(), *counts)
    print_table(console, table)
    console.print()
    console.print(
        f"The search took {total['runs']:g} runs, {total['epochs']:.0f} epochs, "
        f"{duration(total['seconds'])} of virtual time and {duration(wall_seconds)} here."
    )
    console.print(f"compare with: fedoptima compare {folder / TUNED}", soft_wrap=True)
