"""Runs in a few worker processes of this machine, each of which does one run after the other.

A process that dies loses only its own run (an executor's pool would be broken for all). Parent and
worker share one pipe: the parent sends orders, the worker sends its progress. Anything else that
the worker can read during a run means stop: a message from the parent, or the end of the parent.
"""

from __future__ import annotations

import gc
import logging
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

import torch

from fedoptima.comparison.execution import Order, RunState, execute
from fedoptima.comparison.pool import Lost
from fedoptima.comparison.sending import pickled
from fedoptima.experiments.fork_server import ctrl_c_blocked
from fedoptima.experiments.given import Given
from fedoptima.experiments.workers import can_fork, quiet_fork

_POLL_INTERVAL = 0.1  # seconds
_GRACE = 10.0  # seconds for a worker to end when it is asked to


class ProcessPool:
    def __init__(self, jobs: int, given: Given | None = None, *, threads: int = 1) -> None:
        """``jobs``: how many processes. ``threads``: of torch, in each."""
        self._jobs = jobs
        self._given = given or Given()
        # Not forked if that can be avoided: CUDA, torch's and gRPC's threads do not survive it.
        safe = can_fork(threads) and "grpc" not in sys.modules
        self.forks = bool(self._given.names) and safe
        self._pickled = b"" if self.forks else pickled(self._given, threads=threads)
        self._workers: dict[Connection, BaseProcess] = {}
        self._busy: dict[Connection, int] = {}  # with which run
        self._on_gpu: set[Connection] = set()
        self._retired: list[BaseProcess] = []

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *error: object) -> None:
        processes = [*self._workers.values(), *self._retired]
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(_GRACE)
            process.kill()  # nothing if it has ended
            process.join()

    def has_room(self) -> bool:
        return len(self._busy) < self._jobs

    def start(self, index: int, order: Order) -> None:
        free = (worker for worker in self._workers if worker not in self._busy)
        worker = next(free, None) or self._start_worker(alone=order.workers == 1)
        self._busy[worker] = index
        if order.on_gpu:
            self._on_gpu.add(worker)
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
                process = self._workers[worker]
                self._forget(worker)
                yield index, Lost(_died(process))
                continue
            if state.over:
                del self._busy[worker]
            if state.phase == "failed" and worker in self._on_gpu:
                self._retire(worker)
            yield index, state

    def _retire(self, worker: Connection) -> None:
        """After an error of CUDA a process cannot compute any more: its next run would be lost,
        too. It ends when it finds its pipe closed."""
        self._retired.append(self._workers[worker])
        self._forget(worker)

    def _forget(self, worker: Connection) -> None:
        del self._workers[worker]
        self._on_gpu.discard(worker)
        worker.close()

    def stop(self) -> None:
        for worker in self._busy:
            with suppress(OSError):
                worker.send("stop")

    def _start_worker(self, *, alone: bool) -> Connection:
        """``alone``: it starts no processes of its own."""
        context: BaseContext = get_context("fork" if self.forks else "spawn")
        ours, theirs = context.Pipe()
        work: Callable[[], None] = partial(_work, theirs, self._pickled)
        if self.forks:
            work = partial(_work_forked, theirs, self._given, [*self._workers, ours])
        process = context.Process(target=work, daemon=alone)  # type: ignore[attr-defined]
        with ctrl_c_blocked(), quiet_fork():
            process.start()
            self._workers[ours] = process
        theirs.close()  # so that the end of the process is the end of the pipe
        return ours


def _died(process: BaseProcess) -> str:
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


def _work(connection: Connection, pickled: bytes) -> None:
    logging.getLogger("fedoptima").addHandler(logging.NullHandler())  # the parent logs
    _serve(connection, pickle.loads(pickled))


def _work_forked(connection: Connection, given: Given, others: Sequence[Connection]) -> None:
    """``others``: the parent's ends of pipes: while one is open here, it does not seem to end."""
    for other in others:
        other.close()
    gc.freeze()  # what the parent left may be its threads', and to finalise it would wait for them
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # with it the pool ends a worker
    torch.set_num_threads(1)  # more would wait for threads that are not in this process
    log = logging.getLogger("fedoptima")  # the parent logs
    log.handlers, log.propagate = [logging.NullHandler()], False
    _serve(connection, given)


def _serve(connection: Connection, given: Given) -> None:
    with suppress(EOFError):  # the parent has ended
        while isinstance(order := connection.recv(), Order):
            execute(order, _Pipe(connection), given)
            with suppress(RuntimeError):  # after an error of CUDA; the next run is another's
                _release_memory()


def _release_memory() -> None:
    """What a run held is free for the runs of other processes, not kept for the next one here.

    Engines and their recorded graphs refer to each other, so they live until a collection; torch
    keeps the GPU memory that they give back. Seven workers came to 20 GB each that way.
    """
    gc.collect()
    torch.cuda.empty_cache()  # nothing happens where CUDA is not in use
