"""Checkpoints of a server: when one is due, and the three steps of making it.

Freezing the core takes the event loop a moment. The engine's state is copied on the compute
thread, ahead of the job that was just ordered. The disk is written to in the background.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fedoptima.core.server import ServerCore
from fedoptima.engine.checkpoint import SavedEngine, newest_checkpoint
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.disk import Disk
from fedoptima.runtime.server.checkpoint import Captured, SavedAccounts, ServerProcess, capture
from fedoptima.runtime.server.server_trace import ServerTrace
from fedoptima.trace.writer import Mark

_WHAT = "a checkpoint"
_SELDOM = 60.0  # seconds at least between two lines in the log


class Checkpointer:
    def __init__(
        self,
        folder: Path,
        trace: ServerTrace,
        disk: Disk,
        *,
        seconds: float,
        merges: int | None,
        kept: int,
        log: logging.Logger,
        accounts: Callable[[], SavedAccounts] = lambda: dict,
        config: str = "",
        number: int = 0,
        version: int = 0,
    ) -> None:
        """``accounts``: takes those of the records so far. ``config``: the text of config.json.
        ``number`` and ``version``: of the checkpoint that this server was resumed from."""
        self._folder = folder
        self._trace = trace
        self._disk = disk
        self._seconds = seconds
        self._merges = merges
        self._kept = kept
        self._log = log
        self._accounts = accounts
        self._config = config
        self._number = number
        self._last = time.monotonic()
        self._last_version = version
        self._logged = float("-inf")  # when a checkpoint was logged last
        self._failed: BaseException | None = None  # why the last one is not on disk
        self._writing = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._idle = asyncio.Event()
        self._idle.set()

    def possible(self, core: ServerCore) -> bool:
        """Before there is a plan there is nothing to save: the run just starts again."""
        return core.planned

    def due(self, core: ServerCore) -> bool:
        merges = self._merges
        due = time.monotonic() - self._last >= self._seconds or (
            merges is not None and core.version - self._last_version >= merges
        )
        return due and not self._writing and self.possible(core)

    def save(
        self, core: ServerCore, engine: SavedEngine, compute: Compute, process: ServerProcess
    ) -> None:
        self._last, self._last_version = time.monotonic(), core.version
        captured = capture(core, process, self._accounts())
        reached = self._trace.mark(process.running, captured.core)
        self._number += 1
        self._writing += 1
        self._idle.clear()
        number = self._number

        def write(_: None) -> None:
            loop = asyncio.get_running_loop()
            task = loop.run_in_executor(self._thread, self._write, captured, number, reached)
            task.add_done_callback(lambda future: self._written(future.exception()))

        compute.submit(lambda: captured.complete(engine), write, self._written)

    def _write(self, captured: Captured, number: int, reached: Future[Mark]) -> None:
        began = time.monotonic()
        mark = reached.result()
        captured.write(self._folder, number, mark, config=self._config, keep=self._kept)
        now = time.monotonic()
        if now - self._logged >= _SELDOM:
            self._logged = now
            self._log.info(
                "checkpoint %d is in %s (written in %.1f s)", number, self._folder, now - began
            )

    def _written(self, error: BaseException | None) -> None:
        self._writing -= 1
        if not self._writing:
            self._idle.set()
        self._failed = error
        if error is None:
            self._disk.worked(_WHAT)
        elif isinstance(error, OSError):  # a full disk must not end the training
            self._disk.failed(_WHAT, error)
        else:
            self._log.error("no checkpoint could be written: %s", error)

    def say_what_is_lost(self, saved: Path) -> str:
        """When the server stops: nothing, or that its last checkpoint is not on disk. ``saved``:
        where the run would go on from."""
        if self._failed is None:
            return ""
        newest = newest_checkpoint(saved)
        age = time.time() - newest.stat().st_mtime if newest else None
        way_on = "starts over" if age is None else f"continues from the one of {age:.0f} s ago"
        why = getattr(self._failed, "strerror", None) or self._failed
        lost = f"its last checkpoint could not be written ({why}): resumed, the run {way_on}"
        self._log.error("%s", lost)
        return f"; {lost}"

    async def close(self) -> None:
        """Returns when every checkpoint made so far is on disk."""
        await self._idle.wait()
        self._thread.shutdown(wait=False)
