"""What the measurements of the network runtime share: certificates, recipes, a server's process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_run import RunHooks, ServerWatch, serve_run
from fedoptima.experiments.server_setup import ServerSetup
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.certificates import authority_files, make_authority, make_device
from fedoptima.runtime.security.tls import DeviceTLS, ServerTLS


def server_tls(folder: Path) -> ServerTLS:
    pair = make_authority(folder, ["127.0.0.1"])
    return ServerTLS(authority_files(folder).cert, pair.cert, pair.key)


def device_tls(folder: Path, name: str) -> DeviceTLS:
    pair = make_device(folder, name)
    return DeviceTLS(authority_files(folder).cert, pair.cert, pair.key)


def run_server(
    build: Callable[[], ServerSetup], folder: Path, tls: ServerTLS, parent: Connection
) -> None:
    """A server's process: tells its address and leads the run.

    Through the pipe it can be asked for its memory and how many devices have joined ("look"), and
    be told to end ("end").
    """
    torch.set_num_threads(1)
    setup = build()
    directory = RunDirectory.create(folder, setup.describe())
    ends = False

    def answer(watch: ServerWatch) -> None:
        nonlocal ends
        while parent.poll():
            ends = parent.recv() == "end"
            if not ends:
                parent.send((resident_bytes(), len(watch.node.machine.members)))

    hooks = RunHooks(ready=parent.send, observe=answer, interrupted=lambda: ends)
    with suppress(Interrupted):
        serve_run(setup, directory, tls=tls, hooks=hooks)


@contextmanager
def server_process(
    target: Callable[..., None], *arguments: object
) -> Iterator[tuple[Address, Connection]]:
    """``target`` is called in a process of its own with the arguments and its end of a pipe."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(*arguments, there), daemon=True)
    process.start()
    there.close()  # if the process dies, reading from the pipe fails instead of waiting
    try:
        yield here.recv(), here
        process.join(60)
    finally:
        process.kill()
        process.join()
        here.close()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
