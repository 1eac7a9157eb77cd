"""Runs in a few worker processes of this machine, each of which does one run after the other.

A process that dies loses only its own run (an executor's pool would be broken for all). Parent and
worker share one pipe: the parent sends orders, the worker sends its progress. Anything else that
the worker can read during a run means stop: a message from the parent, or the end of the parent.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from fedoptima.comparison.execution import Order, RunState, execute
from fedoptima.comparison.pool import Lost
from fedoptima.experiments.fork_server import ctrl_c_blocked

_POLL_INTERVAL = 0.1  # seconds


class ProcessPool:
    def __init__(self, jobs: int) -> None:
        """``jobs``: how many processes."""
        self._jobs = jobs
        self._workers: dict[Connection, SpawnProcess] = {}
        self._busy: dict[Connection, int] = {}  # with which run

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._workers.values():
            process.terminate()
        for process in self._workers.values():
            process.join()

    def has_room(self) -> bool:
        return len(self._busy) < self._jobs

    def start(self, index: int, order: Order) -> None:
        free = (worker for worker in self._workers if worker not in self._busy)
        worker = next(free, None) or self._start_worker(alone=order.workers == 1)
        self._busy[worker] = index
        with suppress(OSError):  # it has died: its next news
            worker.send(order)

    def news(self) -> Iterator[tuple[int, RunState | Lost]]:
        for worker in wait(list(self._busy), timeout=_POLL_INTERVAL):
            assert isinstance(worker, Connection)
            index = self._busy[worker]
            try:
                state = worker.recv()
            except (EOFError, OSError):
                del self._busy[worker]
                yield index, Lost(_died(self._workers.pop(worker)))
                continue
            if state.over:
                del self._busy[worker]
            yield index, state

    def stop(self) -> None:
        for worker in self._busy:
            with suppress(OSError):
                worker.send("stop")

    def _start_worker(self, *, alone: bool) -> Connection:
        """``alone``: it starts no processes of its own."""
        context = get_context("spawn")  # not fork: CUDA and torch's threads do not survive it
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=alone)
        with ctrl_c_blocked():
            process.start()
            self._workers[ours] = process
        theirs.close()  # so that the end of the process is the end of the pipe
        return ours


def _died(process: SpawnProcess) -> str:
    process.join()
    code = process.exitcode or 0
    if code >= 0:
        return f"its process ended with exit code {code}"
    hint = "; was there enough memory? try fewer --jobs" if code == -signal.SIGKILL else ""
    return f"its process was ended by {signal.Signals(-code).name}{hint}"


# ---- in a worker's process -------------------------------------------------------------------


class _Pipe:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, state: RunState) -> None:
        with suppress(OSError):  # the parent has ended: `stopped` will find out
            self._connection.send(state)

    def stopped(self) -> bool:
        return self._connection.poll()


def _work(connection: Connection) -> None:
    logging.getLogger("fedoptima").addHandler(logging.NullHandler())  # the parent logs
    with suppress(EOFError):  # the parent has ended
        while isinstance(order := connection.recv(), Order):
            execute(order, _Pipe(connection))
