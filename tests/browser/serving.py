"""The live page's server in a thread of the test, on a free port; it looks often."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from fedoptima.dashboard.app import dashboard
from fedoptima.dashboard.folder import Runs
from fedoptima.dashboard.server import address_of, open_socket
from fedoptima.dashboard.watch import Cadence
from tests.browser.live import LivePage
from tests.browser.visits import LAPTOP, Browsers
from tests.support.network import Work

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OFTEN = Cadence(every=0.1, share=0.9)


class LivePages:
    """Opens pages of folders; at the end none may have complained, and each is closed before its
    server is, which it would miss."""

    def __init__(self, chromium: Browser) -> None:
        self._browsers = Browsers(chromium)
        self._servers = ExitStack()

    def serve(self, path: Path, token: str | None = None) -> str:
        return self._servers.enter_context(served(path, token=token))

    def open(self, address: str, *, size: tuple[int, int] = LAPTOP) -> LivePage:
        return LivePage(self._browsers.open(address, size=size))

    def close(self) -> None:
        with self._servers:
            self._browsers.close()


@contextmanager
def served(path: Path, *, token: str | None = None) -> Iterator[str]:
    """Gives the address, without the token."""
    listening = open_socket("127.0.0.1", 0)
    app = dashboard(Runs.at(path), token=token, cadence=OFTEN)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    work = Work(lambda: server.run(sockets=[listening]), "page")
    work.start()  # whoever comes before it accepts waits in the socket's queue
    try:
        yield address_of(listening)
    finally:
        server.should_exit = True
        work.answer()
