"""What `fedoptima server` and `fedoptima run` share: a run led from this process, and watched."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import typer

from fedoptima.cli.console import stderr
from fedoptima.cli.errors import INTERRUPTED
from fedoptima.cli.fleet_view import fleet_view
from fedoptima.cli.interrupt import Interrupt
from fedoptima.cli.logs import log_to
from fedoptima.cli.outcome import show_result

if TYPE_CHECKING:
    from fedoptima.api.directory import RunDirectory
    from fedoptima.api.result import Result
    from fedoptima.config.schema import Recipe
    from fedoptima.runtime.address import Address
    from fedoptima.runtime.tls import ServerTLS


def lead(
    recipe: Recipe,
    directory: RunDirectory,
    *,
    again: list[str],
    resume: bool,
    quiet: bool,
    listen: Address,
    tls: ServerTLS | None,
    beside: Any = None,
) -> Result:
    """``again``: the command that goes on with this run."""
    from fedoptima.api.directory import RunDirectory
    from fedoptima.api.run import Interrupted
    from fedoptima.api.server_run import Company, serve
    from fedoptima.api.serving import prepare_server
    from fedoptima.runtime.handshake_log import refusals_logged

    with fleet_view(recipe, directory.path, quiet=quiet) as view:
        setup = prepare_server(recipe, progress=view.reading)
        if not resume:
            directory = RunDirectory.create(directory.path, setup.recipe, dry=False)
        log_to(directory.logs, "server", quiet=quiet)
        try:
            with Interrupt() as interrupted, refusals_logged():
                company = Company(view.ready, view.observe, interrupted, beside)
                return serve(
                    setup, directory, listen=listen, tls=tls, resume=resume, company=company
                )
        except (Interrupted, KeyboardInterrupt) as stop:
            view.close()
            stderr().print(f"stopped; go on with: {shlex.join(again)}", soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from stop


def show(result: Result, *, as_json: bool) -> None:
    if as_json:
        typer.echo(result.to_json())
    else:
        show_result(result)
