"""``fedoptima simulate``: train on a virtual clock, or go on with a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedoptima.cli.console import stderr
from fedoptima.cli.errors import INTERRUPTED
from fedoptima.cli.interrupt import Interrupt
from fedoptima.cli.outcome import show_result
from fedoptima.cli.progress import view_of
from fedoptima.cli.recipe import RECIPE_HELP, Method, Sets, naming, read_recipe
from fedoptima.core.errors import ConfigError

if TYPE_CHECKING:
    from fedoptima.api import Recipe, Result


def simulate(
    recipe: Annotated[Path | None, typer.Argument(metavar="RECIPE", help=RECIPE_HELP)] = None,
    method: Method = None,
    sets: Sets = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Use another seed.", min=0)
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="Where the maths runs: cpu, cuda, cuda:1."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The run's folder, new or empty.  [default: a fresh runs/NAME-METHOD-seedN]",
        ),
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry", help="Only the timing, without tensors: for any fleet size.")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Go on with the run in this folder."),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wall time between checkpoints.", min=0)
    ] = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train on a virtual clock.

    Ctrl-C stops a run at a point from which --resume goes on.
    """
    if run is not None:
        asked = {"RECIPE": recipe, "--method": method, "--set": sets, "--seed": seed}
        asked |= {"--device": device, "--out": out, "--dry": dry or None}
        _refuse([name for name, value in asked.items() if value is not None])
        result = _resume(run, checkpoint_every, quiet)
    elif recipe is not None:
        changed = read_recipe(recipe, method=method, sets=sets, seed=seed, device=device)
        with naming(recipe):
            result = _begin(changed, out, dry, checkpoint_every, quiet)
    else:
        raise ConfigError("no RECIPE; for example: fedoptima simulate recipes/demo_digits.toml")
    if as_json:
        typer.echo(result.to_json())
    else:
        show_result(result)


def _refuse(options: list[str]) -> None:
    if options:
        raise ConfigError(
            f"--resume goes on with a run as it was begun: leave out {', '.join(options)}, "
            "or begin another run without --resume"
        )


def _begin(
    recipe: Recipe, out: Path | None, dry: bool, checkpoint_every: float, quiet: bool
) -> Result:
    from fedoptima import api
    from fedoptima.api.directory import fresh_directory

    name = f"{recipe.name}-{recipe.method.name}-seed{recipe.seed}"
    folder = out or fresh_directory(Path("runs"), name)
    begin = partial(api.simulate, recipe, out=folder, dry=dry, checkpoint_every=checkpoint_every)
    return _watched(begin, recipe, folder, quiet)


def _resume(folder: Path, checkpoint_every: float, quiet: bool) -> Result:
    from fedoptima import api
    from fedoptima.api.directory import RunDirectory

    _, recipe, _ = RunDirectory.open(folder)
    go_on = partial(api.resume, folder, checkpoint_every=checkpoint_every)
    return _watched(go_on, recipe, folder, quiet)


def _watched(run: Callable[..., Result], recipe: Recipe, folder: Path, quiet: bool) -> Result:
    from fedoptima.api import Interrupted

    try:
        with Interrupt() as interrupted, view_of(recipe, quiet=quiet, folder=folder) as view:
            return run(observer=view.training, progress=view.reading, interrupted=interrupted)
    except (Interrupted, KeyboardInterrupt) as stop:
        begun = (folder / "config.json").exists()
        again = f"; go on with: fedoptima simulate --resume {shlex.quote(str(folder))}"
        stderr().print(f"stopped{again if begun else ''}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from stop
