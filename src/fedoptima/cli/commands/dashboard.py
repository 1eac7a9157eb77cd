"""``fedoptima dashboard``: a live page of a run, or of all runs in a folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedoptima.cli.errors import warn
from fedoptima.core.errors import ConfigError
from fedoptima.display.console import stderr

_NEEDED = ("starlette", "uvicorn", "plotly")
_TOKEN = "FEDOPTIMA_DASHBOARD_TOKEN"  # beside the option, which every user's `ps` would show


def dashboard(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_DIR", help="A run's folder, or one that holds runs.")
    ] = Path("runs"),
    port: Annotated[
        int, typer.Option(metavar="PORT", help="0: any free one.", min=0, max=65535)
    ] = 8050,
    host: Annotated[str, typer.Option(metavar="HOST", help="Where to listen.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Require this token.", envvar=_TOKEN)
    ] = None,
    inherited: Annotated[int | None, typer.Option("--inherited-socket", hidden=True)] = None,
) -> None:
    """Show runs in a browser, live or afterwards.

    Reads the runs' files and changes nothing; training is not affected. Visible on this machine
    only, unless a --token is given (or set in FEDOPTIMA_DASHBOARD_TOKEN).

    \b
    For example:
      fedoptima dashboard runs/demo_digits-fedoptima
      fedoptima dashboard runs --port 9000
      fedoptima dashboard runs --host 0.0.0.0 --token $(openssl rand -hex 16)
    """
    check_installed()
    from fedoptima.core.hosts import is_loopback
    from fedoptima.dashboard.access import check_access
    from fedoptima.dashboard.folder import Runs
    from fedoptima.dashboard.server import address_of, open_socket, serve

    if inherited is not None:  # started beside a run, whose folder may not be there yet
        listening = socket.socket(fileno=inherited)
        serve(Runs(path, single=True), listening, token=token, until=_stdin_ends)
        return
    check_access(host, token)
    runs = Runs.at(path)
    listening = open_socket(host, port)
    if not is_loopback(host):
        warn("the page and its token cross the network unencrypted; docs/dashboard.md says more")
    what = "run" if runs.single else "runs"
    stderr().print(f"{what} in {path}: {address_of(listening, token)} (Ctrl-C ends it)")
    serve(runs, listening, token=token)


def check_installed() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the page needs {missing[0]}: pip install 'fedoptima[dashboard]'")


@contextmanager
def page_beside(run: Path, port: int | None) -> Iterator[str | None]:
    """The page of a run that this process leads, as a process of its own; gives its address.

    The socket is opened here, so that a port that is taken is found before the run begins. Like a
    device's, the page's process holds one end of a pipe to this one, and ends when it breaks.
    """
    if port is None:
        yield None
        return
    check_installed()
    from fedoptima.dashboard.server import address_of, open_socket

    with open_socket("127.0.0.1", port, option="--dashboard") as listening:
        address = address_of(listening)
        number = listening.fileno()
        page = subprocess.Popen(
            [*_COMMAND, str(run), "--inherited-socket", str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[number],
            start_new_session=True,  # Ctrl-C is for this process
        )
    try:
        yield address
    finally:
        assert page.stdin is not None
        page.stdin.close()


_COMMAND = (sys.executable, "-m", "fedoptima", "dashboard")


def _stdin_ends() -> None:
    """Whoever started this process has ended: stdin is a pipe, and breaks then."""
    while os.read(0, 1):
        pass
