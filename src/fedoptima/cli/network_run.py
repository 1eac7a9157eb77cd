"""What `fedoptima server` and `fedoptima run` share: the server of a run, and its view."""

from __future__ import annotations

import asyncio
import logging
import shlex
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from fedoptima.cli.commands.dashboard import page_beside
from fedoptima.cli.errors import INTERRUPTED
from fedoptima.cli.logs import log_to_console, log_to_file
from fedoptima.cli.tracking_options import TrackingOptions
from fedoptima.cli.views.fleet_view import fleet_view
from fedoptima.cli.views.outcome import show_result
from fedoptima.core.errors import ConfigError, FedOptimaError
from fedoptima.display.console import stderr
from fedoptima.display.interrupt import Interrupt
from fedoptima.trace.description import Mode

if TYPE_CHECKING:
    from fedoptima.config.schema import Recipe
    from fedoptima.experiments.result import Result
    from fedoptima.experiments.run_directory import RunDirectory
    from fedoptima.experiments.server_run import BackgroundTask
    from fedoptima.named_code import AllowedCode
    from fedoptima.runtime.address import Address
    from fedoptima.runtime.security.access_lists import AccessLists
    from fedoptima.runtime.security.tls import ServerTLS

LOG = logging.getLogger("fedoptima.server")


def run_server(
    recipe: Recipe,
    directory: RunDirectory,
    *,
    again: list[str],
    resume: bool,
    extended: bool,
    quiet: bool,
    listen: Address,
    tls: ServerTLS | None,
    access: AccessLists | None = None,
    gateways: int = 0,
    tracking: TrackingOptions,
    page: int | None,
    code: AllowedCode,
    background: BackgroundTask | None = None,
    paced: bool = False,
) -> Result:
    """``again``: the command that resumes this run. ``page``: the port of its dashboard.

    ``code``: what the recipe may name. ``background``: see `RunHooks`. ``paced``: it is kept with
    the run that its devices, which are here, are slowed.
    """
    from fedoptima.experiments.given import Given
    from fedoptima.experiments.run_directory import RunDirectory
    from fedoptima.experiments.server_run import RunHooks, serve_run
    from fedoptima.experiments.server_setup import prepare_server
    from fedoptima.experiments.simulated_run import Interrupted

    if resume:
        directory.check_resumed_by(Mode.NETWORK)
    console, begun = stderr(), False

    def ready(address: Address) -> None:
        nonlocal begun
        begun = True
        view.ready(address)

    try:
        with ExitStack() as stack:
            stack.enter_context(log_to_console(console, logging.ERROR if quiet else logging.INFO))
            interrupted = stack.enter_context(Interrupt(LOG.warning))
            tracked = stack.enter_context(
                tracking.open(
                    recipe, directory.path, mode=Mode.NETWORK, resumed=resume, quiet=quiet
                )
            )
            shown_at = stack.enter_context(page_beside(directory.path, page))
            if shown_at is not None and not quiet:
                console.print(f"dashboard on {shown_at}", soft_wrap=True)
            view = stack.enter_context(fleet_view(console, recipe, directory.path, quiet=quiet))
            shared = background is not None  # the devices are started here
            setup = prepare_server(recipe, Given(code=code), view.reading, shared=shared)
            if resume:
                directory.check_material(setup.material)
            if extended:  # not earlier: what was not possible leaves the run as it was
                directory.extend(recipe)
            if not resume:
                described = replace(setup.describe(), paced=paced)
                directory = RunDirectory.create(directory.path, described)
            stack.enter_context(log_to_file(directory.server_log))
            observe = tracked.server_observer(None if quiet else view.observe)
            hooks = RunHooks(ready, observe, interrupted, background)
            result = serve_run(
                setup,
                directory,
                listen=listen,
                tls=tls,
                access=access,
                gateways=gateways,
                resume=resume,
                hooks=hooks,
            )
            tracked.finish(result)
            return result
    except ConfigError:
        if not (begun or resume):
            directory.discard()
        raise
    except (Interrupted, KeyboardInterrupt) as stop:
        way_on = f"; resume with: {shlex.join(again)}" if directory.begun else ""
        console.print(f"stopped{way_on}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from stop
    except FedOptimaError as error:
        if directory.begun and not directory.failure.exists():
            with suppress(OSError):  # what is wrong with the disk is not why it failed
                directory.write_failure(str(error))
        raise


def tell_late_devices(
    result: Result,
    seconds: float,
    listen: Address,
    *,
    tls: ServerTLS | None,
    access: AccessLists | None,
    quiet: bool,
) -> None:
    """The run is over: tell the devices that come."""
    from fedoptima.runtime.server.finished import tell_devices

    with (
        log_to_console(stderr(), logging.ERROR if quiet else logging.INFO),
        Interrupt(lambda _: None) as interrupted,
        suppress(KeyboardInterrupt),
    ):
        asyncio.run(
            tell_devices(
                result.reason,
                seconds,
                listen,
                tls=tls,
                access=access,
                interrupted=interrupted,
            )
        )


def over(run: RunDirectory) -> str:
    return (
        f"{run.path}: this run is over; its result is in {run.summary}. Add --extend "
        "stop.epochs=N to continue it"
    )


def show(result: Result, *, as_json: bool) -> None:
    if as_json:
        typer.echo(result.to_json())
    else:
        show_result(result, time="time")
