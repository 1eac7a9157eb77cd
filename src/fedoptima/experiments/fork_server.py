"""Device processes, forked by `multiprocessing`'s fork server once it has loaded torch.

Loading takes seconds and a quarter of a gigabyte; a fork takes a moment and shares that memory.
Nothing that is loaded there may load gRPC, whose threads do not survive a fork.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

# The optimisers of torch load its compiler, whether it is used or not.
_PRELOADED = ("torch._dynamo", "fedoptima.experiments.setup")
_GRACE = 3.0  # seconds for a process to end by itself once its parent has ended
_SAFE_PATH = "PYTHONSAFEPATH"
_LONGEST_FOLDER = 60  # characters; multiprocessing adds about 35


def start_fork_server(work: Callable[[T], None]) -> None:
    """Loads in the background, and ends with this process. ``work``: see `process_of`."""
    get_context("forkserver").set_forkserver_preload([*_PRELOADED, work.__module__])
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"  # no file in the current folder can replace a library
    # Its socket has to fit into 108 bytes; a long TMPDIR leaves no room for the name.
    folder, tempfile.tempdir = tempfile.tempdir, _short(tempfile.gettempdir())
    try:
        with ctrl_c_blocked():
            ensure_running()
    finally:
        tempfile.tempdir = folder
        del os.environ[_SAFE_PATH]
        if before is not None:
            os.environ[_SAFE_PATH] = before


def _short(folder: str) -> str:
    return folder if len(folder) <= _LONGEST_FOLDER else "/tmp"


def process_of(work: Callable[[T], None], subject: T, log: Path) -> ForkServerProcess:
    """A process, not yet started, that writes all its output to ``log`` and ends with this one."""
    context = get_context("forkserver")
    return context.Process(target=_run, args=(work, subject, log), daemon=True)


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """A terminal sends Ctrl-C, and SIGHUP when it is closed, to every process; a child started in
    here ignores both."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()  # starting it later would lift the block
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(work: Callable[[T], None], subject: T, log: Path) -> None:
    os.setsid()  # Ctrl-C on the parent's terminal does not come here, so the block can go
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
    with log.open("ab") as file:
        for output in (1, 2):
            os.dup2(file.fileno(), output)
    Thread(target=_end_with_parent, daemon=True).start()
    work(subject)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])  # ready when the parent has ended, for whatever reason
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(1)
