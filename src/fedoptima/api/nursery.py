"""Processes of `fedoptima ...` commands, forked from one that has loaded torch already.

Loading takes seconds and a quarter of a gigabyte; a fork takes a moment and shares that memory. In
all else it is a process as if it had been typed. It holds one end of a pipe, its lifeline, as its
stdin: with ``--end-with-stdin`` it ends when the pipe breaks, however its starter comes to its end.

Nothing here may load gRPC: a command sets its environment before it does.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
# The optimisers of torch load its compiler, whether it is used or not.
_LOADED = ["torch._dynamo", "fedoptima.api.build", "fedoptima.cli"]


@contextmanager
def nursery() -> Iterator[None]:
    """Loads in the background. To be entered before stderr is put to other uses."""
    _CONTEXT.set_forkserver_preload(_LOADED)
    forkserver.ensure_running()
    try:
        yield
    finally:
        _end()


def _end() -> None:
    """By itself it would end after this process, and so slowly that it looks left behind."""
    server = forkserver._forkserver
    pid: int | None = server._forkserver_pid  # type: ignore[attr-defined]
    if pid is not None:
        os.kill(pid, signal.SIGKILL)  # its children live on; it has nothing to save
        server._stop()  # type: ignore[attr-defined]


class CommandProcess:
    """``arguments``: what follows ``fedoptima``. To be made on an event loop."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        theirs, self._lifeline = _CONTEXT.Pipe(duplex=False)
        # daemon: not waited for when this process ends; it ends by its lifeline.
        self._process = _CONTEXT.Process(
            target=_become, args=(list(arguments), log, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        loop = asyncio.get_running_loop()
        self.code: asyncio.Future[int] = loop.create_future()  # its exit code; below 0: a signal
        loop.add_reader(self._process.sentinel, self._ended)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        if not self.code.done():
            self.code.set_result(self._process.exitcode or 0)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def let_go(self) -> None:
        self._lifeline.close()

    def kill(self) -> None:
        self._process.kill()


def _become(arguments: list[str], log: Path, lifeline: Connection) -> None:
    os.setsid()  # Ctrl-C is for the starter
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.dup2(lifeline.fileno(), 0)
    lifeline.close()
    sys.argv = ["fedoptima", *arguments]
    runpy.run_module("fedoptima", run_name="__main__", alter_sys=True)
