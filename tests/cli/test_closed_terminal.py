"""A terminal that is closed, as when a connection to another machine is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fedoptima.trace.run_folder import RunFiles
from tests.cli.conftest import Call
from tests.support.network import until

PATIENCE = 180.0  # seconds; a process that has not come so far by then never will

# It takes its terminal by itself: a preexec_fn runs gRPC's handlers of a fork, which may abort.
HEAR, IGNORE = "signal.SIG_DFL", "signal.SIG_IGN"
START = """
import fcntl, runpy, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, {hang_up})
sys.argv = ["fedoptima", *sys.argv[1:]]
runpy.run_module("fedoptima", run_name="__main__")
"""


class Terminal:
    """A process whose terminal this is, and which shows its progress there."""

    def __init__(self, folder: Path, hang_up: str, *words: str) -> None:
        self._ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START.format(hang_up=hang_up), *words],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)
        self._enough = threading.Event()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        with suppress(OSError):  # the process has ended
            while os.read(self._ours, 4096) and not self._enough.is_set():
                pass

    def close(self) -> None:
        self._enough.set()
        self._reading.join(PATIENCE)  # it has something to show every moment
        os.close(self._ours)
        with suppress(ProcessLookupError):  # it has ended by then
            os.killpg(self.process.pid, signal.SIGHUP)  # as a shell does, to all of a job

    def ends(self) -> int:
        return self.process.wait(PATIENCE)


@contextmanager
def simulation(folder: Path, hang_up: str, *options: str) -> Iterator[Terminal]:
    """Given when it has saved a checkpoint, in the middle of its training."""
    run = ("simulate", "tiny.toml", "--out", "run", "--checkpoint-every", "0.2", *options)
    terminal = Terminal(folder, hang_up, *run)
    try:
        saved = (folder / "run" / "checkpoints").glob
        until(lambda: any(saved("[0-9]*")), "a checkpoint is saved", PATIENCE)
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_whose_terminal_is_closed_stops_where_it_can_be_resumed(
    recipe: Path, tmp_path: Path, call: Call, workers: str
) -> None:
    options = ("--set", "stop.epochs=1000", "--workers", workers)
    with simulation(tmp_path, HEAR, *options) as terminal:
        terminal.close()
        assert terminal.ends() == 130
    run = RunFiles(tmp_path / "run")
    assert run.stopped.exists()
    assert not run.failure.exists()
    assert call("replay", "run").code == 0


def test_under_nohup_a_run_goes_on_without_its_terminal(recipe: Path, tmp_path: Path) -> None:
    with simulation(tmp_path, IGNORE, "--set", "stop.epochs=20") as terminal:
        terminal.close()
        assert terminal.ends() == 0
    assert (tmp_path / "run" / "summary.json").exists()
