"""Processes of `fedoptima ...` commands, forked from one that has loaded torch already.

Loading takes seconds and a quarter of a gigabyte; a fork takes a moment and shares that memory. In
all else it is a process as if it had been typed. It holds one end of a pipe, its lifeline, as its
stdin: with ``--end-with-stdin`` it ends when the pipe breaks, however its starter comes to its end.

Nothing here may load gRPC: a command sets its environment before it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from select import select
from typing import NoReturn, Self

# The optimisers of torch load its compiler, whether it is used or not.
_LOADED = ("torch._dynamo", "fedoptima.experiments.setup", "fedoptima.cli")
_MOST = 1 << 16  # bytes of a message
_LOST = 1  # the exit code of a process of which nobody will ever know more


class CommandProcess:
    def __init__(self, lifeline: int) -> None:
        self._lifeline = lifeline
        loop = asyncio.get_running_loop()
        self.pid: asyncio.Future[int] = loop.create_future()
        self.code: asyncio.Future[int] = loop.create_future()  # at its end; below 0: a signal's

    def let_go(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def kill(self) -> None:
        if self.pid.done() and not self.code.done():
            os.kill(self.pid.result(), signal.SIGKILL)


class Nursery:
    """Loads in the background from ``with`` on, and ends with it."""

    def __enter__(self) -> Self:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._children: list[CommandProcess] = []
        self._process = subprocess.Popen(
            # With the path as it is here: no file in the current folder replaces a library.
            [
                *(sys.executable, "-P", "-c"),
                f"import sys; sys.path[:] = {sys.path!r}; "
                f"from {__name__} import tend; tend({theirs.fileno()})",
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
        )
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()

    def start(self, arguments: Sequence[str], log: Path) -> CommandProcess:
        """``arguments``: what follows ``fedoptima``. To be called on an event loop.

        Wait for its pid before the next one: neither side reads while it writes.
        """
        asyncio.get_running_loop().add_reader(self._socket, self._hear)
        theirs, ours = os.pipe()
        try:
            with log.open("ab") as file:
                request = json.dumps([len(self._children), *arguments]).encode()
                socket.send_fds(self._socket, [request], [theirs, file.fileno()])
        finally:
            os.close(theirs)
        self._children.append(CommandProcess(ours))
        return self._children[-1]

    def _hear(self) -> None:
        """What became of a child: its pid when it is born, its code when it has ended."""
        try:
            message = self._socket.recv(_MOST)
        except ConnectionError:
            message = b""
        if message:
            number, fact, value = json.loads(message)
            future: asyncio.Future[int] = getattr(self._children[number], fact)
            future.set_result(value)
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        for child in self._children:
            for future, value in ((child.pid, 0), (child.code, _LOST)):
                if not future.done():
                    future.set_result(value)


# ---- the process that they are forked from -------------------------------------------------------


def tend(descriptor: int) -> NoReturn:
    link = socket.socket(fileno=descriptor)
    for module in _LOADED:
        import_module(module)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    numbers: dict[int, int] = {}  # of the children, by pid
    while True:
        readable, _, _ = select([descriptor, woken], [], [])
        if woken in readable:
            os.read(woken, _MOST)
            _bury(link, numbers)
        if descriptor in readable:
            message, descriptors, _, _ = socket.recv_fds(link, _MOST, 2)
            if not message:
                os._exit(0)  # at once: there is nothing to save
            number, *arguments = json.loads(message)
            pid = os.fork()
            if not pid:
                for own in (woken, waker, link.detach()):
                    os.close(own)
                _become(arguments, *descriptors)
            numbers[pid] = number
            _tell(link, number, "pid", pid)
            for given in descriptors:
                os.close(given)


def _bury(link: socket.socket, numbers: dict[int, int]) -> None:
    while numbers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        _tell(link, numbers.pop(pid), "code", os.waitstatus_to_exitcode(status))


def _tell(link: socket.socket, number: int, fact: str, value: int) -> None:
    link.send(json.dumps([number, fact, value]).encode())


def _become(arguments: list[str], lifeline: int, log: int) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for given, place in ((lifeline, 0), (log, 1), (log, 2)):
        os.dup2(given, place)
    os.close(lifeline)
    os.close(log)
    sys.argv = ["fedoptima", *arguments]
    try:
        runpy.run_module("fedoptima", run_name="__main__", alter_sys=True)
    except BaseException:  # a command ends its process itself, unless it has a bug
        traceback.print_exc()
    os._exit(1)
