"""Carries what is to be sent, one after the other, in a thread that nobody waits for.

The first failure is logged and ends it: what is posted after that is thrown away, so that a server
that is gone costs neither time nor memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from typing import ParamSpec

LOG = logging.getLogger("fedoptima.tracking")

_MOST_WAITING = 10_000  # errands
_FAREWELL = 30.0  # seconds that the end may take

Parameters = ParamSpec("Parameters")


class Courier:
    def __init__(self, whither: str, *, most: int = _MOST_WAITING) -> None:
        self._whither = whither
        self._errands: Queue[Callable[[], object] | None] = Queue(most)
        self._failed = False
        # A daemon: a request that hangs must not keep the program from its end.
        self._thread = threading.Thread(target=self._work, name=whither, daemon=True)
        self._thread.start()

    def post(
        self,
        errand: Callable[Parameters, object],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> None:
        if self._failed:
            return
        try:
            self._errands.put_nowait(lambda: errand(*args, **kwargs))
        except Full:
            self._fail("too much is waiting to be sent")

    def close(self, patience: float = _FAREWELL) -> None:
        """Waits for what is on its way, but not for long."""
        if self._failed:
            return
        with suppress(Full):  # then it has been busy with one errand for all this time
            self._errands.put(None, timeout=patience)
            self._thread.join(patience)
        if self._thread.is_alive():
            self._fail(f"not everything was sent within {patience:g} s")

    def _work(self) -> None:
        while not self._failed:
            errand = self._errands.get()
            if errand is None:
                return
            try:
                errand()
            except Exception as error:
                self._fail(error)

    def _fail(self, why: object) -> None:
        if not self._failed:
            self._failed = True
            LOG.warning("%s gets no more of this run, which goes on: %s", self._whither, why)
