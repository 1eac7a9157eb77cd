"""``fedoptima run``: a server and its devices on this machine, as real processes over TLS."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedoptima.cli.options as options
from fedoptima.cli.commands.device import device_process
from fedoptima.cli.errors import warn
from fedoptima.cli.network_run import over, run_server, show
from fedoptima.cli.recipe_options import (
    allowance,
    extension,
    naming,
    read_recipe,
    refuse_with_resume,
)
from fedoptima.cli.tracking_options import TrackingOptions
from fedoptima.core.errors import ConfigError
from fedoptima.named_code import ANY_CODE, AllowedCode, allow

if TYPE_CHECKING:
    from fedoptima.config.schema import Recipe
    from fedoptima.experiments.result import Result
    from fedoptima.experiments.run_directory import RunDirectory


def run(
    recipe: options.RecipeFile = None,
    devices: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many devices.  [default: the recipe's fleet]", min=1),
    ] = None,
    paced: Annotated[
        bool,
        typer.Option("--paced", help="Slow every device and link to its speed in the fleet."),
    ] = False,
    method: options.Method = None,
    sets: options.Sets = None,
    seed: options.Seed = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", help="Where the server computes: cpu, cuda, cuda:1."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The run's folder, new or empty.  [default: a fresh runs/NAME-METHOD]",
        ),
    ] = None,
    resumed: options.ResumedRun = None,
    extend: options.Extend = None,
    allow_modules: options.AllowModules = None,
    dashboard: options.PagePort = None,
    metrics_port: options.MetricsPort = None,
    tensorboard: options.TensorBoardFolder = None,
    mlflow: options.MLflowURI = None,
    quiet: options.Quiet = False,
    as_json: options.AsJSON = False,
) -> None:
    """Train over the network, all of it on this machine.

    Starts a server and N device processes that talk to it over TLS, as they would from elsewhere,
    and shows how all of them are doing. Ctrl-C stops a run; --resume continues it.

    \b
    For example:
      fedoptima run recipes/demo_digits.toml --devices 4
      fedoptima run recipes/demo_digits.toml --paced --method splitfed
      fedoptima run --resume runs/demo_digits-fedoptima
    """
    with options.deploy_extra():
        from fedoptima.experiments.fresh_directory import fresh_directory
        from fedoptima.experiments.local_fleet import crowding, threads_here, with_devices
        from fedoptima.experiments.run_directory import RunDirectory
        from fedoptima.experiments.server_setup import device_names
    tracking = TrackingOptions(metrics_port, tensorboard, mlflow)
    if resumed is not None:
        asked = {"RECIPE": recipe, "--devices": devices, "--method": method, "--set": sets}
        asked |= {"--seed": seed, "--device": device, "--out": out}
        refuse_with_resume(asked)
        folder, resolved, _ = RunDirectory.open(resumed)
        if folder.over and not extend:
            raise ConfigError(over(folder))
        resolved, _ = extension(folder, resolved, extend)
        result = _run(
            resolved,
            folder,
            tracking,
            dashboard,
            code=allow(allow_modules),
            paced=paced or folder.description.paced,
            resume=True,
            extended=bool(extend),
            quiet=quiet,
        )
        show(result, as_json=as_json)
        return
    if extend:
        raise ConfigError("--extend needs --resume RUN: which run should continue?")
    if recipe is None:
        raise ConfigError("no RECIPE; for example: fedoptima run recipes/demo_digits.toml")
    read = read_recipe(recipe, method=method, sets=sets, seed=seed, device=device)
    path = out or fresh_directory(Path("runs"), f"{read.name}-{read.method.name}")
    with naming(recipe, path):
        resolved = with_devices(read, devices)
        count = len(device_names(resolved))
        if warning := crowding(count):
            warn(warning)
        if resolved.threads is None:
            resolved = resolved.model_copy(update={"threads": threads_here(count)})
        RunDirectory.check_free(path)  # before a certificate is made for every device
        begun = RunDirectory(path)
        result = _run(
            resolved,
            begun,
            tracking,
            dashboard,
            code=ANY_CODE,
            paced=paced,
            resume=False,
            extended=False,
            quiet=quiet,
        )
    show(result, as_json=as_json)


def _run(
    recipe: Recipe,
    folder: RunDirectory,
    tracking: TrackingOptions,
    page: int | None,
    *,
    code: AllowedCode,
    paced: bool,
    resume: bool,
    extended: bool,
    quiet: bool,
) -> Result:
    from fedoptima.experiments.fork_server import start_fork_server
    from fedoptima.experiments.local_fleet import LocalFleet
    from fedoptima.experiments.server_setup import device_names
    from fedoptima.runtime.address import Address
    from fedoptima.runtime.security.certificates import make_authority, make_device
    from fedoptima.runtime.security.tls import DeviceTLS, ServerTLS

    again = ["fedoptima", "run", "--resume", str(folder.path), *allowance(recipe)]
    if paced and resume and not folder.description.paced:  # of before that was remembered
        again.append("--paced")
    start_fork_server(device_process)
    with tempfile.TemporaryDirectory(prefix="fedoptima-") as temporary:
        certs = Path(temporary)
        own = make_authority(certs, ["127.0.0.1"], days=2)
        ca = certs / "ca.pem"
        pairs = {name: make_device(certs, name, days=2) for name in device_names(recipe)}
        fleet = LocalFleet(
            recipe,
            paced,
            states=folder.states,
            logs=folder.logs,
            certificates={n: DeviceTLS(ca, pair.cert, pair.key) for n, pair in pairs.items()},
            work=device_process,
            code=code,
        )
        return run_server(
            recipe,
            folder,
            again=again,
            resume=resume,
            extended=extended,
            quiet=quiet,
            listen=Address("127.0.0.1", 0),
            tls=ServerTLS(ca, own.cert, own.key),
            tracking=tracking,
            page=page,
            code=code,
            background=fleet,
            paced=paced,
        )
