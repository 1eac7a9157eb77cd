"""The worker processes of an executor: starts them, sends and receives messages, ends them."""

from __future__ import annotations

import os
import pickle
import select
import signal
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

from fedoptima.core.errors import RunFailed
from fedoptima.core.plan import Plan
from fedoptima.engine.workload import Workload
from fedoptima.sim.processes.messages import Done, Order
from fedoptima.sim.processes.shared_memory import SharedMemory
from fedoptima.sim.processes.worker import BuildDevice, work


class WorkerPool:
    def __init__(
        self, count: int, memory: SharedMemory, workload: Workload, plan: Plan, build: BuildDevice
    ) -> None:
        context = get_context("fork")  # what the user gave as Python objects is there, too
        pipes = [context.Pipe() for _ in range(count)]
        self._pipes: list[Connection] = [ours for ours, _ in pipes]
        self._processes = []
        self._poll = select.poll()
        for number, (ours, theirs) in enumerate(pipes):
            others = [end for pipe in pipes for end in pipe if end is not theirs]
            process = context.Process(
                target=work,
                args=(theirs, others, memory, number, count, workload, plan, build),
                name=f"fedoptima-worker-{number}",
                daemon=True,
            )
            with warnings.catch_warnings():
                # Python 3.12 and later: other threads are not in the new process. They are those
                # of views and trackers, which workers have nothing to do with.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            self._processes.append(process)
            self._poll.register(ours.fileno(), select.POLLIN)
        self._numbers = {ours.fileno(): number for number, ours in enumerate(self._pipes)}
        for _, theirs in pipes:
            theirs.close()

    def send(self, worker: int, orders: list[Order]) -> None:
        try:
            self._pipes[worker].send_bytes(pickle.dumps(orders))
        except OSError as error:
            raise self._lost(worker) from error

    def receive(self, take: Callable[[int, list[Done]], None], *, wait: bool) -> None:
        for descriptor, _ in self._poll.poll(None if wait else 0):
            worker = self._numbers[descriptor]
            try:
                done: list[Done] = pickle.loads(self._pipes[worker].recv_bytes())
            except (EOFError, OSError) as error:
                raise self._lost(worker) from error
            take(worker, done)

    def _lost(self, worker: int) -> RunFailed:
        process = self._processes[worker]
        process.join(1)
        code = process.exitcode
        how = f"with exit code {code}"
        if code is not None and code < 0:
            how = f"by {signal.Signals(-code).name}"
            how += "; was there enough memory? use fewer workers" if code == -9 else ""
        return RunFailed(f"worker process {process.pid} was ended {how}")

    def end(self) -> None:
        """They hold nothing that is needed: what a run keeps is with the driving process."""
        for process in self._processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
