"""``fedoptima sweep``: one recipe with varied settings, all combinations, one table and a plot."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import fedoptima.cli.many_runs as many_runs
import fedoptima.cli.options as options
from fedoptima.cli.errors import warn
from fedoptima.cli.recipe_options import allowance, read_recipe
from fedoptima.core.errors import ConfigError
from fedoptima.display.console import plain_table, print_table, stdout

if TYPE_CHECKING:
    from fedoptima.comparison.result import Comparison, Line

PLOT = "sweep.html"
_EXAMPLE = "fedoptima sweep recipes/demo_digits.toml --vary method.activation_cap=4,8,32"


def sweep(
    recipe: options.RecipeFile = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=A,B,C",
            help="Values of a key of the recipe; method.X and pipar.X as in --set. May be given "
            "again: all combinations are run.",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="The methods.  [default: the recipe's]")
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
        typer.Option(metavar="ACC", help="Report the time to this accuracy, e.g. 0.8."),
    ] = None,
    sets: many_runs.Sets = None,
    device: options.ComputeDevice = None,
    workers: options.Workers = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A new folder, or that of a sweep to extend.  [default: a fresh runs/NAME-sweep]",
        ),
    ] = None,
    dry: options.Dry = False,
    folder: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="Resume the sweep in this folder."),
    ] = None,
    allow_modules: options.AllowModules = None,
    checkpoint_every: options.CheckpointEvery = 60.0,
    quiet: options.Quiet = False,
    as_json: options.AsJSON = False,
) -> None:
    """Run a recipe with all combinations of varied settings; one table and a plot.

    A method that the varied keys do not apply to runs once. Finished runs are kept: by
    --resume, and when --out is the folder of an earlier sweep of the same recipe.
    """
    execution = many_runs.Execution(
        "sweep", jobs, many_runs.place(on, cpus, gpus, retries), checkpoint_every, quiet
    )
    if folder is not None:
        asked: dict[str, object] = {"RECIPE": recipe, "--vary": vary, "--methods": methods}
        asked |= {"--seeds": seeds, "--seed": seed, "--target": target, "--set": sets}
        asked |= {"--device": device, "--out": out, "--dry": dry or None, "--workers": workers}
        result = many_runs.resume(folder, asked, allow_modules or (), execution)
    elif recipe is None:
        raise ConfigError(f"no RECIPE; for example: {_EXAMPLE}")
    elif not vary:
        raise ConfigError(f"nothing is varied; for example: {_EXAMPLE}")
    else:
        from fedoptima.comparison.settings import read_vary, sort_sets
        from fedoptima.comparison.sweep import sweep as run_sweep
        from fedoptima.experiments.fresh_directory import fresh_directory

        own, options = sort_sets(sets or [])
        changed = read_recipe(recipe, sets=own, device=device, workers=workers, several=True)
        folder = out or fresh_directory(Path("runs"), f"{changed.name}-sweep")
        begin = partial(
            run_sweep,
            changed,
            read_vary(vary),
            methods=methods,
            seeds=many_runs.one_of(seeds, seed),
            options=options,
            target=target,
            dry=dry,
            out=folder,
            command=shlex.join(["fedoptima", *sys.argv[1:]]),
        )
        result = many_runs.watched(begin, folder, allowance(changed), execution)
    _plot(result, folder)
    if as_json:
        typer.echo(result.to_json())
    else:
        _show(result, folder)
    many_runs.report_failures(result)


def _plot(result: Comparison, folder: Path) -> None:
    from fedoptima.reporting.sweep_page import write_sweep_page

    try:
        write_sweep_page(result, folder / PLOT)
    except ConfigError as error:  # plotly is an extra; the table is there without it
        warn(f"no plot: {error}")


def _show(result: Comparison, folder: Path) -> None:
    """The figures that most are after; the others would not fit beside the settings."""
    from fedoptima.comparison.result import SPREAD, lines, notes, setting_cells

    about, console = result.about, stdout()
    title = f"{result.name}: {len(result.rows)} settings, {len(result.runs)} runs"
    console.print(Text.assemble((title, "bold"), " - only the timing" if about.dry else ""))
    console.print()
    shown = list(_main(lines(result)))
    names = [name.replace(" of the run", "").replace(" ", "\n") for name, _ in shown]
    table = plain_table("method", *(key.replace(".", ".\n") for key in about.vary), *names)
    table.columns[0].no_wrap = True
    for index, row in enumerate(result.rows):
        cells = (cells[index].replace(SPREAD, f"\n{SPREAD.strip()}") for _, cells in shown)
        table.add_row(row.method, *setting_cells(result, row), *cells)
    print_table(console, table)
    console.print()
    for note in notes(result):
        console.print(note)
    files = [name for name in ("sweep.md", "sweep.csv", PLOT) if (folder / name).exists()]
    console.print(f"\nresults in {folder}: {', '.join(files)}", soft_wrap=True)


def _main(found: Sequence[Line]) -> Iterator[Line]:
    """Shares of the time are below the seconds an epoch: there is no room beside them."""
    from fedoptima.comparison.result import SPREAD

    known = dict(found)
    retention = any(name.startswith("R, ") for name in known)  # what such a sweep is about
    rest = ("R, ", "device samples") if retention else ("time", "server idle", "device idle")
    wanted = ("failed", "final", "test", "useful", *rest)
    for name, cells in found:
        _, _, unit = name.partition("idle")
        if not name.startswith(wanted) or (unit and unit.endswith("%")):
            continue
        share = known.get(name.replace("s/epoch", "%")) if unit else None
        if share is None:
            yield name, cells
        else:
            both = zip(cells, share, strict=True)
            yield f"{name} (%)", [f"{seconds}\n({part.split(SPREAD)[0]})" for seconds, part in both]
