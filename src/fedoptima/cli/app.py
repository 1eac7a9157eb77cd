"""All commands under one name."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fedoptima.cli.commands.certs import certs
from fedoptima.cli.commands.compare import compare
from fedoptima.cli.commands.control import pause, stop
from fedoptima.cli.commands.dashboard import dashboard
from fedoptima.cli.commands.device import device
from fedoptima.cli.commands.doctor import doctor
from fedoptima.cli.commands.fuzz import fuzz
from fedoptima.cli.commands.lists import datasets, fleets, methods
from fedoptima.cli.commands.new import new
from fedoptima.cli.commands.plan import plan
from fedoptima.cli.commands.replay import replay
from fedoptima.cli.commands.report import report
from fedoptima.cli.commands.reproduce import reproduce
from fedoptima.cli.commands.run import run
from fedoptima.cli.commands.runs import runs
from fedoptima.cli.commands.server import server
from fedoptima.cli.commands.simulate import simulate
from fedoptima.cli.commands.sweep import sweep
from fedoptima.cli.commands.trace import trace
from fedoptima.cli.commands.tune import tune
from fedoptima.cli.errors import explained, leave_at_once
from fedoptima.cli.options import in_brief
from fedoptima.display.console import stdout
from fedoptima.version import __version__

app = typer.Typer(
    name="fedoptima",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a bug is reported with Python's own traceback
    rich_markup_mode=None,  # help that reads the same on any terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    *(run, server, device, simulate, compare, sweep, tune, reproduce, report, trace, dashboard),
    *(plan, replay, fuzz, runs, pause, stop, new, doctor, methods, datasets, fleets),
):
    app.command(short_help=in_brief(command))(explained(command))
app.add_typer(certs)


def _print_version(wanted: bool) -> None:
    if wanted:
        stdout().print(f"fedoptima {__version__}")
        raise typer.Exit


@app.callback()
def fedoptima(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Train one neural network across uneven devices and a server, with neither side waiting.

    \b
    For example:
      fedoptima plan recipes/demo_digits.toml
      fedoptima simulate recipes/demo_digits.toml --set stop.epochs=5
      fedoptima compare recipes/demo_digits.toml
      fedoptima run recipes/demo_digits.toml --devices 4
    """


def main() -> None:
    # Models and data named as package.module:function are looked for here too. Last, so that a
    # file in the current folder never takes the place of a library.
    sys.path.append(os.getcwd())
    try:
        app(prog_name="fedoptima")
    except SystemExit as end:
        if isinstance(end.code, int):
            leave_at_once(end.code)
        raise
