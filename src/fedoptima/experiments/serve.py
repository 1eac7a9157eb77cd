"""The server of a run over the network, from Python: the public function `serve`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedoptima.config.load import as_recipe, of_method
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.layouts import ReadingProgress
from fedoptima.display.views import run_view
from fedoptima.display.wording import speaks_python
from fedoptima.experiments.extension import extend as extend_run
from fedoptima.experiments.given import Given
from fedoptima.experiments.python_call import stoppable
from fedoptima.experiments.result import Result
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_run import RunHooks, serve_run
from fedoptima.experiments.server_setup import check_same_recipe, prepare_server
from fedoptima.named_code import ANY_CODE, allow
from fedoptima.runtime.address import Address, parse_address
from fedoptima.runtime.gateway.process import check_gateways
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.tls import ServerTLS, choose_security
from fedoptima.runtime.server.finished import tell_devices
from fedoptima.trace.description import Mode

LOG = logging.getLogger("fedoptima.server")


@speaks_python("serve")
def serve(
    recipe: Recipe | str | Path | None = None,
    *,
    out: str | Path,
    resume: bool = False,
    extend: Mapping[str, object] | None = None,
    listen: str = "127.0.0.1:50051",
    devices: int | None = None,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    insecure: bool = False,
    allow_devices: str | Path | None = None,
    revoked: str | Path | None = None,
    gateways: int = 0,
    linger: float = 0.0,
    allow_modules: Sequence[str] = (),
    ready: Callable[[str], None] = lambda _: None,
    progress: bool | None = None,
    reading: ReadingProgress | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Result:
    """Train over the network: wait for devices (see `join`), serve them until the run is over.

    Ctrl-C saves a checkpoint, and the message says how to resume the run.

    Args:
        recipe: A recipe file, or a `Recipe`; with `resume` it may be left out.
        out: The run's folder.
        resume: Continue the run in the folder after a kill; it is started if there is none.
        extend: Other values of keys of `stop`: a resumed run goes on until then, also after its
            end.
        listen: The address, `HOST:PORT`.
        devices: Start when this many have joined; by default as many as the fleet has.
        ca: The certificate of the authority. `ca`, `cert` and `key` are needed where devices are
            on other machines; `fedoptima certs` makes them.
        cert: The server's certificate.
        key: Its key.
        insecure: Use no certificates, even for devices on other machines.
        allow_devices: A file with the names of the devices that may connect, one per line. It may
            change during the run, and so may `revoked` and the certificates.
        revoked: A list of revoked certificates, if not the `revoked.txt` next to `ca`.
        gateways: Processes that take the devices' connections, so that encryption and decoding use
            several cores; 0: this process does it.
        linger: Seconds to stay after the run to tell late devices that it is over; with `resume`
            also for a run that was over already.
        allow_modules: The packages from which a run that is resumed without its recipe may load
            code that its files name.
        ready: Called with the address once devices can connect.
        progress: Show what is read, as in `simulate`.
        reading: As in `simulate`.
        interrupted: Called a few times a second; if it returns True, a checkpoint is saved and
            `Interrupted` is raised. With it, handling Ctrl-C is up to the caller.

    Returns:
        What came out, as of `simulate`.

    Raises:
        ConfigError: An argument cannot work; the message says which, and how to fix it.
        FedOptimaError: The run failed.
        Interrupted: `interrupted` returned True.
        KeyboardInterrupt: Ctrl-C.

    Example:
        ```python
        result = fedoptima.serve("recipes/demo_network.toml", out="runs/served", devices=2)
        ```
    """
    address = parse_address(listen, option="listen", any_port=True)
    check_gateways(gateways)
    tls = choose_security(address, ServerTLS.of(ca, cert, key), insecure=insecure)
    for warning in tls.check(address) if tls is not None else []:
        LOG.warning(warning)
    access = AccessLists.of(allow_devices, revoked, tls)
    chosen = None if recipe is None else of_method(as_recipe(recipe))
    if chosen is not None and devices is not None:
        deploy = chosen.deploy.model_copy(update={"devices": devices})
        chosen = chosen.model_copy(update={"deploy": deploy})
    directory, started = RunDirectory(Path(out)), False

    def told(result: Result) -> Result:
        """Once the devices that come late have been."""
        if linger > 0:
            asked = interrupted or (lambda: False)
            late = tell_devices(
                result.reason, linger, address, tls=tls, access=access, interrupted=asked
            )
            asyncio.run(late)
        return result

    resumed = resume and directory.begun
    if resumed:
        directory, kept, _ = RunDirectory.open(Path(out))
        if chosen is not None:
            check_same_recipe(chosen, kept, directory)
        if directory.over and not extend:
            return told(directory.read_result())
        directory.check_resumed_by(Mode.NETWORK)
        if extend:
            kept = extend_run(directory, kept, extend)
        code = ANY_CODE if chosen is not None else allow(allow_modules)
        with run_view(kept, progress) as view:
            setup = prepare_server(kept, Given(code=code), reading or view.reading)
        directory.check_material(setup.material)
        if extend:
            directory.extend(kept)
    elif chosen is not None:
        with run_view(chosen, progress) as view:
            setup = prepare_server(chosen, progress=reading or view.reading)
        directory = RunDirectory.create(Path(out), setup.describe())
    else:
        raise ConfigError(f"{out}: there is no run to resume here; give a recipe")

    def listening(address: Address) -> None:
        nonlocal started
        started = True
        ready(str(address))

    way_on = f"resume it with fedoptima.serve(out={str(out)!r}, resume=True)"
    try:
        with stoppable(interrupted, out, lambda: way_on) as asked:
            result = serve_run(
                setup,
                directory,
                listen=address,
                tls=tls,
                access=access,
                resume=resumed,
                hooks=RunHooks(ready=listening, interrupted=asked),
                gateways=gateways,
            )
    except ConfigError:
        if not (started or resumed):  # nothing was trained, and `out` must be usable again
            directory.discard()
        raise
    return told(result)
