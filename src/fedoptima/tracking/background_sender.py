"""Sends requests one after the other in a background thread that the run never waits for.

The first failure is logged and ends it: later requests are discarded, so that a server that is gone
costs neither time nor memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from typing import ParamSpec

LOG = logging.getLogger("fedoptima.tracking")

_MOST_WAITING = 10_000  # requests
_CLOSING = 30.0  # seconds that the last requests may take

Parameters = ParamSpec("Parameters")


class BackgroundSender:
    def __init__(self, target: str, *, most: int = _MOST_WAITING) -> None:
        self._target = target
        self._requests: Queue[Callable[[], object] | None] = Queue(most)
        self._failed = False
        # A daemon: a request that hangs must not keep the program from its end.
        self._thread = threading.Thread(target=self._work, name=target, daemon=True)
        self._thread.start()

    def post(
        self,
        request: Callable[Parameters, object],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> None:
        if self._failed:
            return
        try:
            self._requests.put_nowait(lambda: request(*args, **kwargs))
        except Full:
            self._fail("too much is waiting to be sent")

    def close(self, patience: float = _CLOSING) -> None:
        """Wait for the requests already posted, up to ``patience`` seconds."""
        if self._failed:
            return
        with suppress(Full):  # one request has taken all this time
            self._requests.put(None, timeout=patience)
            self._thread.join(patience)
        if self._thread.is_alive():
            self._fail(f"not everything was sent within {patience:g} s")

    def _work(self) -> None:
        while not self._failed:
            request = self._requests.get()
            if request is None:
                return
            try:
                request()
            except Exception as error:
                self._fail(error)

    def _fail(self, why: object) -> None:
        if not self._failed:
            self._failed = True
            LOG.warning("%s receives no more of this run, which continues: %s", self._target, why)
