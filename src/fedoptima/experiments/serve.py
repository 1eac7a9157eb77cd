"""The server of a run over the network, from Python: the public function `serve`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedoptima.config.load import as_recipe
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.layouts import ReadingProgress, quiet
from fedoptima.experiments.extension import extend as extend_run
from fedoptima.experiments.given import Given
from fedoptima.experiments.result import Result
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_run import RunHooks, serve_run
from fedoptima.experiments.server_setup import check_same_recipe, prepare_server
from fedoptima.named_code import ANY_CODE, allow
from fedoptima.runtime.address import Address, parse_address
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.tls import ServerTLS, choose_security

LOG = logging.getLogger("fedoptima.server")


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
    allow_modules: Sequence[str] = (),
    ready: Callable[[str], None] = lambda _: None,
    progress: ReadingProgress = quiet,
    interrupted: Callable[[], bool] = lambda: False,
) -> Result:
    """Train over the network: wait for devices (see `join`), serve them until the run is over.

    ``out`` is the run's folder. With ``resume`` the run in it continues after a kill, and is
    started if there is none; ``extend``, values of keys of ``stop``, lets it go on longer than its
    recipe says, also after its end. ``devices``: start when this many have joined. Off this machine
    ``ca``, ``cert`` and ``key`` are needed (`fedoptima certs` makes the files), or ``insecure``.
    ``allow_devices``: a file with the names of the devices that may connect, one a line.
    ``revoked``: a list of revoked certificates, if not the revoked.txt beside ``ca``. Both lists,
    and the certificates, may change while the run goes on.

    A run that is resumed without its recipe loads code that its files name only from the packages
    in ``allow_modules``.

    ``ready`` is called with the address once devices can connect. ``interrupted`` is asked a few
    times a second; when it says yes, the run saves a checkpoint and raises `Interrupted`.
    """
    address = parse_address(listen, option="listen", any_port=True)
    tls = choose_security(address, ServerTLS.of(ca, cert, key), insecure=insecure)
    for warning in tls.check(address) if tls is not None else []:
        LOG.warning(warning)
    access = AccessLists.of(allow_devices, revoked, tls)
    chosen = None if recipe is None else as_recipe(recipe)
    if chosen is not None and devices is not None:
        deploy = chosen.deploy.model_copy(update={"devices": devices})
        chosen = chosen.model_copy(update={"deploy": deploy})
    directory, started = RunDirectory(Path(out)), False
    resumed = resume and directory.begun
    if resumed:
        directory, kept, _ = RunDirectory.open(Path(out))
        if chosen is not None:
            check_same_recipe(chosen, kept, directory)
        if directory.over and not extend:
            return directory.read_result()
        if extend:
            kept = extend_run(directory, kept, extend)
        code = ANY_CODE if chosen is not None else allow(allow_modules)
        setup = prepare_server(kept, Given(code=code), progress)
        if extend:
            directory.extend(kept)
    elif chosen is not None:
        setup = prepare_server(chosen, progress=progress)
        directory = RunDirectory.create(Path(out), setup.describe())
    else:
        raise ConfigError(f"{out}: there is no run to resume here; give a recipe")

    def listening(address: Address) -> None:
        nonlocal started
        started = True
        ready(str(address))

    hooks = RunHooks(ready=listening, interrupted=interrupted)
    try:
        return serve_run(
            setup, directory, listen=address, tls=tls, access=access, resume=resumed, hooks=hooks
        )
    except ConfigError:
        if not (started or resumed):  # nothing was trained, and `out` must be usable again
            directory.discard()
        raise
