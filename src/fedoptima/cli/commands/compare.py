"""``fedoptima compare``: several methods on one recipe, side by side, and one table."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import fedoptima.cli.many_runs as many_runs
import fedoptima.cli.options as options
from fedoptima.cli.recipe_options import allowance, read_recipe
from fedoptima.core.errors import ConfigError
from fedoptima.display.console import plain_table, print_table, stdout

if TYPE_CHECKING:
    from fedoptima.comparison.result import Comparison
    from fedoptima.config.schema import Recipe


class Protocol(StrEnum):
    epochs = "epochs"
    time = "time"
    convergence = "convergence"


def compare(
    recipe: options.RecipeFile = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="The methods to compare: names; paper: FedOptima and the paper's six baselines; "
            "or all.  [default: paper]",
        ),
    ] = None,
    seeds: many_runs.Seeds = None,
    seed: many_runs.SeedList = None,
    jobs: many_runs.Jobs = None,
    on: many_runs.On = many_runs.Where.processes,
    cpus: many_runs.Cpus = None,
    gpus: many_runs.Gpus = None,
    retries: many_runs.Retries = None,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="ACC",
            help="The accuracy to reach, e.g. 0.8.  [default: 99 % of fedoptima's best]",
        ),
    ] = None,
    protocol: Annotated[
        Protocol,
        typer.Option(
            help="How long each trains: the recipe's epochs; as much virtual time as fedoptima "
            "takes for them; or until held-out accuracy has not improved for 30 epochs."
        ),
    ] = Protocol.epochs,
    time_of: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --protocol time: the time that fedoptima took in this finished comparison "
            "or run.  [default: of a dry run]",
        ),
    ] = None,
    sets: many_runs.Sets = None,
    device: options.ComputeDevice = None,
    workers: options.Workers = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A new or empty folder.  [default: a fresh runs/NAME-compare]"
        ),
    ] = None,
    dry: options.Dry = False,
    folder: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="Resume the comparison in this folder."),
    ] = None,
    allow_modules: options.AllowModules = None,
    checkpoint_every: options.CheckpointEvery = 60.0,
    quiet: options.Quiet = False,
    as_json: options.AsJSON = False,
) -> None:
    """Run several methods side by side and put their figures in one table.

    All share the seed, initial weights, data partition, schedule, fleet and split. A run that
    fails is reported and the others continue. Ctrl-C stops all; --resume continues.
    """
    execution = many_runs.Execution(
        "compare", jobs, many_runs.place(on, cpus, gpus, retries), checkpoint_every, quiet
    )
    if folder is not None:
        asked: dict[str, object] = {"RECIPE": recipe, "--methods": methods, "--seeds": seeds}
        asked |= {"--seed": seed, "--target": target, "--set": sets, "--device": device}
        asked |= {"--out": out, "--dry": dry or None, "--workers": workers, "--time-of": time_of}
        asked |= {"--protocol": None if protocol is Protocol.epochs else protocol}
        comparison = many_runs.resume(folder, asked, allow_modules or (), execution)
    elif recipe is None:
        raise ConfigError("no RECIPE; for example: fedoptima compare recipes/demo_digits.toml")
    else:
        from fedoptima.comparison.runner import compare as run_comparison
        from fedoptima.comparison.settings import sort_sets
        from fedoptima.experiments.fresh_directory import fresh_directory

        own, options = sort_sets(sets or [])
        changed = read_recipe(recipe, sets=own, device=device, workers=workers, several=True)
        changed = _under(protocol, changed, time_of)
        folder = out or fresh_directory(Path("runs"), f"{changed.name}-compare")
        begin = partial(
            run_comparison,
            changed,
            methods=methods or "paper",
            seeds=many_runs.one_of(seeds, seed),
            options=options,
            target=target,
            dry=dry,
            out=folder,
            command=shlex.join(["fedoptima", *sys.argv[1:]]),
        )
        comparison = many_runs.watched(begin, folder, allowance(changed), execution)
    if as_json:
        typer.echo(comparison.to_json())
    else:
        _show(comparison)
    many_runs.report_failures(comparison)


def _under(protocol: Protocol, recipe: Recipe, time_of: Path | None) -> Recipe:
    from fedoptima.comparison.protocols import dry_time, equal_time, time_taken, until_convergence

    if time_of is not None and protocol is not Protocol.time:
        raise ConfigError("--time-of: only with --protocol time")
    match protocol:
        case Protocol.epochs:
            return recipe
        case Protocol.time:
            return equal_time(recipe, time_taken(time_of) if time_of else dry_time(recipe))
        case Protocol.convergence:
            return until_convergence(recipe)


def _show(comparison: Comparison) -> None:
    """Methods are columns: one line per figure fits in 80 columns, one line per method does not."""
    from fedoptima.comparison.result import SPREAD, lines, notes

    about, console = comparison.about, stdout()
    seeds = f"seed{'s' if len(about.seeds) > 1 else ''} {', '.join(map(str, about.seeds))}"
    title = f"{comparison.name}: {len(about.methods)} methods, {seeds}"
    console.print(Text.assemble((title, "bold"), " - only the timing" if about.dry else ""))
    console.print()
    table = plain_table("", *about.methods)
    table.padding = (0, 1, 0, 0)  # seven methods have to fit
    for name, cells in lines(comparison):
        # A spread stands below its mean, for the same reason.
        table.add_row(name, *(cell.replace(SPREAD, f"\n{SPREAD.strip()}") for cell in cells))
    print_table(console, table)
    console.print()
    for note in notes(comparison):
        console.print(note)
    console.print(f"\nresults in {comparison.directory}", soft_wrap=True)
