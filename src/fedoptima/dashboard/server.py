"""The page's process: a socket, uvicorn on it, and its end together with whoever started it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedoptima.core.errors import ConfigError
from fedoptima.dashboard.folder import Runs

if TYPE_CHECKING:
    from fedoptima.dashboard.connections import Patience

_CLOSING = 2.5  # seconds for browsers to fetch how the run ended


def open_socket(host: str, port: int, *, option: str = "--port") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise ConfigError(
            f"{option} {port}: cannot listen on {host} ({reason}); choose another port, 0 takes a "
            "free one"
        ) from error


def address_of(listening: socket.socket, token: str | None = None) -> str:
    """What to open in a browser."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def serve(
    runs: Runs,
    listening: socket.socket,
    *,
    token: str | None = None,
    until: Callable[[], None] | None = None,
    patience: Patience | None = None,
) -> None:
    """Until Ctrl-C, or a moment after ``until`` has returned."""
    import uvicorn

    from fedoptima.dashboard.app import dashboard
    from fedoptima.dashboard.connections import Patience, protocol

    app = dashboard(runs, token=token)

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.watches.close()  # streams end with what they watch, and not with a traceback
            await super().shutdown(sockets)

    server = Server(
        uvicorn.Config(
            app,
            http=protocol(patience or Patience()),
            log_level="error",
            access_log=False,  # an address may hold the token
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )

    def end() -> None:
        assert until is not None
        until()
        time.sleep(_CLOSING)
        server.should_exit = True

    if until is not None:
        threading.Thread(target=end, daemon=True).start()
    server.run(sockets=[listening])
