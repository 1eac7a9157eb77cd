"""``fedoptima compare``: several methods on one recipe, side by side, and one table."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

import fedoptima.cli.options as options
from fedoptima.cli.console import plain_table, stderr, stdout
from fedoptima.cli.errors import FAILED, INTERRUPTED, complain
from fedoptima.cli.interrupt import Interrupt
from fedoptima.cli.logs import log_to_console
from fedoptima.cli.recipe_options import allowance, read_recipe
from fedoptima.cli.views.comparison_progress import pool_view
from fedoptima.core.errors import ConfigError

if TYPE_CHECKING:
    from fedoptima.comparison.result import Comparison

_METHOD = "method."


def compare(
    recipe: options.RecipeFile = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="The methods to compare.  [default: all]")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Run each N times, seeds from the recipe's on.", min=1),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(metavar="S", help="Run each with this seed. May be given again.", min=0),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", metavar="N", help="Runs at a time.  [default: cores]", min=1),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="ACC",
            help="The accuracy to reach, e.g. 0.8.  [default: 99 % of fedoptima's best]",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Replace a value of the recipe; method.X goes to all methods that have X.",
        ),
    ] = None,
    device: options.ComputeDevice = None,
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
    fails is reported and the others go on. Ctrl-C stops all where --resume goes on.
    """
    if folder is not None:
        asked: dict[str, object] = {
            "RECIPE": recipe,
            "--methods": methods,
            "--seeds": seeds,
            "--seed": seed,
        }
        asked |= {"--target": target, "--set": sets, "--device": device, "--out": out}
        asked |= {"--dry": dry or None}
        _refuse([name for name, value in asked.items() if value is not None])
        comparison = _resume(folder, allow_modules or (), jobs, checkpoint_every, quiet)
    elif recipe is None:
        raise ConfigError("no RECIPE; for example: fedoptima compare recipes/demo_digits.toml")
    elif seeds is not None and seed:
        raise ConfigError("--seeds N counts up from the recipe's seed, --seed names each: give one")
    else:
        from fedoptima.comparison.runner import compare as run_comparison
        from fedoptima.experiments.run_directory import fresh_directory

        own, options = _split_sets(sets or [])
        changed = read_recipe(recipe, sets=own, device=device)
        folder = out or fresh_directory(Path("runs"), f"{changed.name}-compare")
        begin = partial(
            run_comparison,
            changed,
            methods=methods or "all",
            seeds=seed or seeds,
            options=options,
            jobs=jobs,
            target=target,
            dry=dry,
            out=folder,
            checkpoint_every=checkpoint_every,
            command=shlex.join(["fedoptima", *sys.argv[1:]]),
        )
        comparison = _watched(begin, folder, allowance(changed), quiet)
    if as_json:
        typer.echo(comparison.to_json())
    else:
        _show(comparison)
    for failure in comparison.failures():
        complain(failure)
    if comparison.failed:
        raise typer.Exit(FAILED)


def _refuse(options: list[str]) -> None:
    if options:
        raise ConfigError(
            f"--resume continues a comparison as it was started: leave out {', '.join(options)}, "
            "or start another one without --resume"
        )


def _split_sets(sets: list[str]) -> tuple[list[str], dict[str, object]]:
    """What changes the recipe, and the options for whichever methods have them."""
    from fedoptima.config.load import apply_override

    table: dict[str, object] = {}
    for change in sets:
        if change.startswith(_METHOD):
            apply_override(table, change.removeprefix(_METHOD))
    return [change for change in sets if not change.startswith(_METHOD)], table


def _resume(
    folder: Path, allowed: Sequence[str], jobs: int | None, checkpoint_every: float, quiet: bool
) -> Comparison:
    from fedoptima.comparison.runner import resume_comparison

    resumed = partial(
        resume_comparison,
        folder,
        jobs=jobs,
        allow_modules=allowed,
        checkpoint_every=checkpoint_every,
    )
    options = [word for module in allowed for word in ("--allow-module", module)]
    return _watched(resumed, folder, options, quiet)


def _watched(
    run: Callable[..., Comparison], folder: Path, options: list[str], quiet: bool
) -> Comparison:
    """``options``: with which it is resumed."""
    from fedoptima.experiments.simulated_run import Interrupted

    if not quiet:
        stderr().print(f"comparing in {folder}", soft_wrap=True)
    try:
        with (
            Interrupt() as interrupted,
            log_to_console(stderr(), logging.WARNING),
            pool_view(quiet=quiet) as view,
        ):
            return run(observer=view.show, interrupted=interrupted)
    except (Interrupted, KeyboardInterrupt) as stop:
        begun = (folder / "comparison.json").exists()
        again = ["fedoptima", "compare", "--resume", str(folder), *options]
        way_on = f"; resume with: {shlex.join(again)}" if begun else ""
        stderr().print(f"stopped{way_on}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from stop


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
    console.print(Padding(table, (0, 0, 0, 0), expand=False))
    console.print()
    for note in notes(comparison):
        console.print(note)
    console.print(f"\nresults in {comparison.directory}", soft_wrap=True)
