"""``fedoptima device``: take part in a run, with this machine's data and this machine's speed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedoptima.cli.options as options
from fedoptima.cli.errors import INTERRUPTED, explained, leave_at_once, warn
from fedoptima.cli.logs import log_to_console
from fedoptima.display.console import stderr
from fedoptima.display.interrupt import Interrupt
from fedoptima.named_code import allow

if TYPE_CHECKING:
    from fedoptima.experiments.join import DeviceSetup

LOG = logging.getLogger("fedoptima.device")


def device(
    server: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT", help="Where the server listens.")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="This device's name.  [default: the certificate's]"
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="This device's own data: a data set's name or package.module:function.  "
            "[default: its share of the recipe's]",
        ),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where data sets are on this machine.")
    ] = None,
    compute: Annotated[
        str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, cuda:1.")
    ] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", help="torch's threads.  [default: the recipe's]", min=1),
    ] = None,
    allow_modules: options.AllowModules = None,
    ca: options.Authority = None,
    cert: options.Certificate = None,
    key: options.Key = None,
    insecure: options.Insecure = False,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where it keeps its small state.  [default: per user]"),
    ] = None,
    gflops: Annotated[
        float | None, typer.Option(metavar="X", help="Slow computation down to X GFLOP/s.")
    ] = None,
    up_mbps: Annotated[
        float | None, typer.Option(metavar="X", help="Slow the uplink down to X Mbit/s.")
    ] = None,
    down_mbps: Annotated[
        float | None, typer.Option(metavar="X", help="Slow the downlink down to X Mbit/s.")
    ] = None,
    give_up_after: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Stop trying to connect after this time.  [default: never]",
            min=0,
        ),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="After a run, wait for the next one, as a service does.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False,
) -> None:
    """Take part in a run: connect to its server and train until it is over.

    The server sends what a device needs, except the model's code and the data, which must be
    installed here; code that is not fedoptima's own must be allowed with --allow-module. If the
    connection is lost, the device keeps working and reconnects. Ctrl-C stops it; the run continues
    without it, and it can be started again.

    \b
    For example:
      fedoptima device --server localhost:50051 --name pi-1
      fedoptima device --server train.example.org:50051 --data sensors.readings:load --stay \\
        --tls-ca ca.pem --tls-cert pi-1.pem --tls-key pi-1-key.pem

    \b
    Exit code: 0 when the run is over, 1 when the device was refused or failed, 2 for invalid
    options, 130 when it was stopped.
    """
    with options.deploy_extra():
        from fedoptima.experiments.join import device_setup
    setup = device_setup(
        server,
        name=name,
        tls_files=(ca, cert, key),
        insecure=insecure,
        speeds=(gflops, up_mbps, down_mbps),
        state=state,
        warn=warn,
        data=data,
        directory=data_dir,
        compute=compute,
        threads=threads,
        give_up_after=give_up_after,
        stay=stay,
        code=allow(allow_modules),
    )
    _work(setup, quiet=quiet)


def device_process(setup: DeviceSetup) -> None:
    """All that a process of `fedoptima run` does: what it says and how it ends is as above."""
    try:
        explained(_work)(setup, quiet=False)
    except typer.Exit as end:
        leave_at_once(end.exit_code)
    leave_at_once(0)


def _work(setup: DeviceSetup, *, quiet: bool) -> None:
    from fedoptima.experiments.join import run_device
    from fedoptima.experiments.simulated_run import Interrupted

    level = logging.WARNING if quiet else logging.INFO
    with log_to_console(stderr(), level), Interrupt(LOG.warning) as interrupted:
        try:
            LOG.info("%s is done: %s", setup.name, run_device(setup, stopped=interrupted))
        except (Interrupted, KeyboardInterrupt) as stop:
            LOG.warning("%s was stopped; start it again to rejoin", setup.name)
            raise typer.Exit(INTERRUPTED) from stop
