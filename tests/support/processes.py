"""The real commands as real processes, which can be killed.

They are forked from a server process that has loaded torch already: starting one takes a moment
instead of seconds. Waits have deadlines; whatever is still running when a test ends is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedoptima.runtime.address import Address
from fedoptima.trace.record import Record
from fedoptima.trace.run_folder import write_whole
from fedoptima.trace.writer import read_records
from tests.support.command import HEAVY, run_command
from tests.support.network import DEADLINE, until

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(HEAVY)

RECIPE = """
name = "tiny"
seed = 3
threads = 1
split.at = 1
model = {{ name = "tests.e2e.tiny:model", width = {width} }}
data = {{ name = "tests.e2e.tiny:data", partition = {{ kind = "iid" }} }}
method.name = "{method}"
training = {{ batch_size = 8, evaluate_every = 5.0 }}
fleet.server.gflops = 1.0
deploy = {{ checkpoint_merges = 1 }}

[[fleet.devices]]
name = "pi"
count = 2
gflops = 0.1
"""

OWN_CODE = ("--allow-module", "tests")  # which a device or a resumed run loads only if allowed


class Command:
    """``fedoptima ...`` in a process of its own; what it says goes to a file."""

    def __init__(self, log: Path, *arguments: str | Path, patience: float = DEADLINE) -> None:
        """``patience``: seconds for whatever it is waited for."""
        self.log = log
        self._patience = patience
        words = [str(argument) for argument in arguments]
        self._process = _CONTEXT.Process(target=run_command, args=(log, words), daemon=True)
        self._process.start()

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def says(self, words: str, times: int = 1) -> None:
        until(
            lambda: self.said.count(words) >= times or not self.alive,
            f"{words!r} is in {self.log.name}",
            self._patience,
        )
        assert self.said.count(words) >= times, f"it ended without {words!r}:\n{self.said}"

    def kill(self) -> None:
        self._process.kill()
        self._process.join(DEADLINE)
        assert self._process.exitcode == -signal.SIGKILL

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self._signal(number)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ends(self) -> int:
        """Its exit code."""
        self._process.join(self._patience)
        code = self._process.exitcode
        assert code is not None, f"it does not end:\n{self.said}"
        return code

    def clear_away(self) -> None:
        if self.alive:
            self._process.kill()
        self._process.join(DEADLINE)


class Fleet:
    """A server and devices in processes, and what can be read of them from outside."""

    def __init__(
        self, folder: Path, method: str, *, width: int = 4, patience: float = DEADLINE
    ) -> None:
        self.folder = folder
        self.patience = patience
        self.run = folder / "run"
        self.states = folder / "states"
        self.recipe = folder / "tiny.toml"
        self.recipe.write_text(RECIPE.format(method=method, width=width))
        self.address = Address("127.0.0.1", free_port())
        self._commands: list[Command] = []

    def start_server(self, *options: str, resume: bool = False) -> Command:
        what = ["--resume", *OWN_CODE] if resume else [self.recipe]
        where = ["--listen", str(self.address), "--run-dir", self.run]
        server = self.start_command("server", *what, *where, *options)
        server.says("listening on")
        return server

    def start_device(self, name: str, *options: str, through: Address | None = None) -> Command:
        """``through``: a relay's address; without one straight to the server."""
        where = ["--server", str(through or self.address), "--state", self.states]
        return self.start_command("device", "--name", name, *where, *OWN_CODE, *options)

    def start_command(self, command: str, *arguments: str | Path) -> Command:
        log = self.folder / f"{len(self._commands)}-{command}.log"
        self._commands.append(Command(log, command, *arguments, patience=self.patience))
        return self._commands[-1]

    def records_of(self, name: str) -> list[Record]:
        """What the server has on disk of a device's own records, as of now."""
        file = self.run / "devices" / f"{name}.jsonl.gz"
        return [record for _, record in read_records(file)] if file.exists() else []

    def kept_by(self, name: str) -> list[Record]:
        """What a device has on its own disk of its latest records, as of now."""
        file = self.states / f"{name}.records"
        text = file.read_text() if file.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [Record.from_line(line) for line in whole[1:]]

    def end(self) -> None:
        """As by `fedoptima stop`: the run comes to its end."""
        write_whole(self.run / "control", "stop")

    def clear_away(self) -> None:
        for command in self._commands:
            command.clear_away()


@contextmanager
def fleet(folder: Path, method: str, *, width: int = 4) -> Iterator[Fleet]:
    made = Fleet(folder, method, width=width)
    try:
        yield made
    finally:
        made.clear_away()


def free_port() -> int:
    """Below those that the system gives out by itself: until a server listens here, and while it is
    away, nobody's connection may get it, nor a device that looks for its server reach itself."""
    for port in random.SystemRandom().sample(range(10_000, 32_000), 1000):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
