"""``fedoptima server``: run a server for devices on the network, or resume such a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedoptima.cli.options as options
from fedoptima.cli.errors import warn
from fedoptima.cli.network_run import run_server, show, tell_late_devices
from fedoptima.cli.recipe_options import allowance, extension, naming, read_recipe
from fedoptima.cli.tracking_options import TrackingOptions
from fedoptima.core.errors import ConfigError
from fedoptima.named_code import ANY_CODE, allow

if TYPE_CHECKING:
    from fedoptima.config.schema import Recipe
    from fedoptima.experiments.run_directory import RunDirectory
    from fedoptima.runtime.address import Address
    from fedoptima.runtime.security.tls import ServerTLS

_LATE = 3600.0  # seconds for which the server of a run that was over tells those who come


def server(
    recipe: options.RecipeFile = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where devices connect; 0.0.0.0: anywhere.")
    ] = "127.0.0.1:50051",
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run's folder.  [default: a fresh runs/NAME-METHOD]"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the run in --run-dir; if there is none, start it."),
    ] = False,
    extend: options.Extend = None,
    allow_modules: options.AllowModules = None,
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Start when N devices have joined.  [deploy.devices]", min=1
        ),
    ] = None,
    ca: options.Authority = None,
    cert: options.Certificate = None,
    key: options.Key = None,
    insecure: options.Insecure = False,
    allow_devices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Admit only devices named in this file, one per line."),
    ] = None,
    revoked: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Revoked certificates.  [default: revoked.txt next to --tls-ca]"
        ),
    ] = None,
    linger: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="After the run, stay to tell late devices that it is over.  [default: 0; with "
            "--resume of a run that is over: 3600]",
            min=0,
        ),
    ] = None,
    gateways: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Processes that take the connections, for fleets of hundreds; 64 at most.",
            min=0,
        ),
    ] = 0,
    method: options.Method = None,
    sets: options.Sets = None,
    seed: options.Seed = None,
    device: options.ComputeDevice = None,
    dashboard: options.PagePort = None,
    metrics_port: options.MetricsPort = None,
    tensorboard: options.TensorBoardFolder = None,
    mlflow: options.MLflowURI = None,
    quiet: options.Quiet = False,
    as_json: options.AsJSON = False,
) -> None:
    """Serve a run to devices on the network.

    Waits for devices, splits the model for them, trains, and saves checkpoints on the way. Ctrl-C
    notifies the devices and stops; --resume continues. A kill loses at most the work since the last
    checkpoint, and the devices reconnect by themselves. With --resume, a finished run is not served
    again: for an hour, devices that were away at its end are told that it is over.

    Over a network, devices need certificates: 'fedoptima certs' makes them.

    \b
    For example:
      fedoptima server recipes/demo_digits.toml --devices 2
      fedoptima server recipe.toml --listen 0.0.0.0:50051 --run-dir runs/mine --resume \\
        --tls-ca certs/ca.pem --tls-cert certs/server.pem --tls-key certs/server-key.pem
    """
    with options.deploy_extra():
        from fedoptima.runtime.address import parse_address
        from fedoptima.runtime.gateway.process import check_gateways
        from fedoptima.runtime.security.access_lists import AccessLists
        from fedoptima.runtime.security.tls import ServerTLS, choose_security
    check_gateways(gateways)
    address = parse_address(listen, option="--listen", any_port=True)
    tls = choose_security(address, ServerTLS.of(ca, cert, key), insecure=insecure)
    for warning in tls.check(address) if tls is not None else []:
        warn(warning)
    lists = {"--allow-devices": allow_devices, "--revoked": revoked}
    access = AccessLists.of(allow_devices, revoked, tls)
    sets = list(sets or [])
    if devices is not None:
        sets.append(f"deploy.devices={devices}")
    wanted = None
    if recipe is not None:
        wanted = read_recipe(recipe, method=method, sets=sets, seed=seed, device=device)
    folder, resolved, resume = _folder(wanted, run_dir, resume, extend)
    if folder.over and not extend:
        result = folder.read_result()
        show(result, as_json=as_json)
        late = _LATE if linger is None else linger
        tell_late_devices(result, late, address, tls=tls, access=access, quiet=quiet)
        return
    with naming(recipe or folder.config, folder.path):
        result = run_server(
            resolved,
            folder,
            again=[
                *_again(folder.path, address, tls, insecure, lists),
                *(["--gateways", str(gateways)] if gateways else []),
                *allowance(resolved),
            ],
            resume=resume,
            extended=bool(extend),
            quiet=quiet,
            listen=address,
            tls=tls,
            access=access,
            gateways=gateways,
            tracking=TrackingOptions(metrics_port, tensorboard, mlflow),
            page=dashboard,
            code=ANY_CODE if wanted is not None else allow(allow_modules),
        )
    show(result, as_json=as_json)
    if linger:
        tell_late_devices(result, linger, address, tls=tls, access=access, quiet=quiet)


def _folder(
    recipe: Recipe | None, path: Path | None, resume: bool, extend: list[str] | None
) -> tuple[RunDirectory, Recipe, bool]:
    """The run's folder and recipe, and whether it is resumed."""
    from fedoptima.experiments.fresh_directory import fresh_directory
    from fedoptima.experiments.run_directory import RunDirectory
    from fedoptima.experiments.server_setup import check_same_recipe

    if extend and not resume:
        raise ConfigError("--extend needs --resume --run-dir RUN: which run should continue?")
    if resume and path is None:
        raise ConfigError("--resume needs --run-dir: which run is to be resumed?")
    if resume and path is not None and RunDirectory(path).begun:
        directory, kept, _ = RunDirectory.open(path)
        if recipe is not None:
            check_same_recipe(recipe, kept, directory)
        kept, _ = extension(directory, kept, extend)
        return directory, kept, True
    if extend:
        raise ConfigError(f"{path}: there is no run to extend here")
    if recipe is None and resume:
        raise ConfigError(
            f"--run-dir {path}: there is no run to resume, and no RECIPE to begin one"
        )
    if recipe is None:
        raise ConfigError("no RECIPE; for example: fedoptima server recipes/demo_digits.toml")
    if path is not None and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(
            f"--run-dir {path}: exists already; choose another, or add --resume to "
            "resume the run in it"
        )
    if path is None:
        path = fresh_directory(Path("runs"), f"{recipe.name}-{recipe.method.name}")
    return RunDirectory(path), recipe, False


def _again(
    folder: Path,
    listen: Address,
    tls: ServerTLS | None,
    insecure: bool,
    lists: Mapping[str, Path | None],
) -> list[str]:
    command = ["fedoptima", "server", "--resume", "--run-dir", str(folder), "--listen", str(listen)]
    if tls is not None:
        command += ["--tls-ca", str(tls.ca), "--tls-cert", str(tls.cert), "--tls-key", str(tls.key)]
    for option, file in lists.items():
        command += [] if file is None else [option, str(file)]
    return [*command, *(["--insecure"] if insecure else [])]
