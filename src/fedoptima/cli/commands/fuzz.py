"""``fedoptima fuzz``: simulated faults by the thousand, and the laws that hold all the same."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import fedoptima.cli.completion as completion
import fedoptima.cli.options as options
from fedoptima.cli.errors import FAILED
from fedoptima.core.errors import ConfigError
from fedoptima.display.console import plain_table, say, stderr, stdout

if TYPE_CHECKING:
    from rich.console import Console

    from fedoptima.fuzzing.campaign import Tally
    from fedoptima.named_code import AllowedCode

_SHOWN = 10  # failures
_SILENCE = 5.0  # seconds between two lines of progress
_TOLD = 400  # lines of a story, its end


def fuzz(
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="How many scripts.", min=1)
    ] = 1000,
    first: Annotated[
        int, typer.Option("--first", metavar="SEED", help="The seed of the first one.", min=0)
    ] = 0,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="SEED", help="Run only this script.", min=0)
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="With --seed: show what happened; for a failure, without the faults that it does "
            "not need.",
        ),
    ] = False,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="Only this method. Repeatable.  [default: all built-in ones]",
            autocompletion=completion.methods,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", help="Processes.", min=1)] = 1,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Write the table into this Markdown file, between its marks.",
        ),
    ] = None,
    allow_modules: options.AllowModules = None,
    quiet: options.Quiet = False,
    as_json: options.AsJSON = False,
) -> None:
    """Run random fault scripts against the real cores on a virtual clock, and check invariants.

    Connections are cut or half-open, messages are late or duplicated, devices hang, die and fail,
    the server dies at any event and is restored. The exit code is 1 if an invariant (a law) is
    broken; a seed reproduces its script.
    """
    names = methods or []
    code = _allowed(names, allow_modules)
    if explain and seed is None:
        raise ConfigError("--explain: give the script, too: --seed SEED")
    if seed is not None:
        first, seeds = seed, 1
    if explain:
        _explain(first, names, code)
        return
    tally = _play(first, seeds, names, code, jobs, quiet=quiet)
    if record is not None:
        _record(record, tally, first, seeds)
    if as_json:
        typer.echo(json.dumps(tally.plain(), indent=2))
    else:
        _show(stdout(), tally, names, allow_modules or [])
    if tally.failures:
        raise typer.Exit(FAILED)


def _allowed(names: list[str], modules: list[str] | None) -> AllowedCode:
    from fedoptima.named_code import allow

    code = allow(modules)
    for name in names:
        package = name.partition(":")[0].partition(".")[0]
        if ":" in name and not modules:
            raise ConfigError(f"--method {name}: allow its code, too: --allow-module {package}")
    return code


def _play(
    first: int, seeds: int, names: list[str], code: AllowedCode, jobs: int, *, quiet: bool
) -> Tally:
    from fedoptima.fuzzing.campaign import campaign

    said = time.monotonic()

    def progress(tally: Tally) -> None:
        nonlocal said
        if not quiet and time.monotonic() - said >= _SILENCE:
            said = time.monotonic()
            broken = f", {len(tally.failures)} broke a law" if tally.failures else ""
            say(stderr(), f"{tally.seeds:,} of {seeds:,} scripts{broken}")

    return campaign(first, seeds, names, code, jobs=jobs, progress=progress)


def _show(console: Console, tally: Tally, names: list[str], modules: list[str]) -> None:
    from fedoptima.fuzzing.report import rows, summary

    table = plain_table("what went wrong", "tries", "survived", "worst case", left=1)
    for row in rows(tally):
        table.add_row(*row)
    console.print(table)
    console.print()
    console.print(summary(tally), soft_wrap=True)
    again = "".join(f" --method {name}" for name in names)
    again += "".join(f" --allow-module {module}" for module in modules)
    for failure in tally.failures[:_SHOWN]:
        console.print(Text(str(failure), style="red"), soft_wrap=True)
        console.print(f"  fedoptima fuzz --seed {failure.seed} --explain{again}", soft_wrap=True)
    if len(tally.failures) > _SHOWN:
        console.print(f"and {len(tally.failures) - _SHOWN} more")


def _record(file: Path, tally: Tally, first: int, seeds: int) -> None:
    from fedoptima.fuzzing.report import record

    command = f"fedoptima fuzz --seeds {seeds}" + (f" --first {first}" if first else "")
    record(file, tally, command)


def _explain(seed: int, names: list[str], code: AllowedCode) -> None:
    from fedoptima.fuzzing.campaign import find_methods, play, smallest
    from fedoptima.fuzzing.script import draw
    from fedoptima.fuzzing.story import Story, introduction

    console, story = stdout(), Story()
    script = draw(seed, find_methods(names, code))
    planned = len(script.faults)
    _, broken = play(script)
    if broken is not None:
        script = smallest(script, broken.law)
    _, broken = play(script, story.told)
    for line in introduction(script):
        console.print(line, soft_wrap=True)
    console.print(f"{len(script.faults)} of {planned} faults are needed" if broken else "")
    if len(story.lines) > _TOLD:
        console.print(f"... {len(story.lines) - _TOLD:,} lines before")
    for told in story.lines[-_TOLD:]:
        console.print(Text(str(told), style="bold red" if told.fault else ""), soft_wrap=True)
    if broken is None:
        console.print("every law held")
        return
    console.print(Text(f"broke the law of {broken}", style="red"), soft_wrap=True)
    raise typer.Exit(FAILED)
