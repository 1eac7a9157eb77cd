"""How long two workers take for FedOptima if nothing disturbs them, and who waits when.

The driver, the cores and the schedule are the real ones; the workers only let time pass, as much
for each kind of work as it was measured to take. So what is lost by waiting is the same on every
machine, however busy: 16 devices, VGG-5, as in `fedoptima_workers`, whose bound this has.

python -m benchmarks.modelled_workers [--seconds Forward=0.025 ...]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.fedoptima_workers import WORKLOAD
from benchmarks.figures import show
from benchmarks.workloads import recipe, store_images
from fedoptima.core.events import Metrics
from fedoptima.core.jobs import ExportModel, LoadModel
from fedoptima.core.plan import Plan
from fedoptima.core.types import SERVER
from fedoptima.experiments.assembly import build_simulation
from fedoptima.experiments.setup import Experiment, prepare
from fedoptima.sim.processes.executor import Processes
from fedoptima.sim.processes.messages import Done, Order, Release, Snapshot
from fedoptima.sim.processes.shared_memory import Place
from fedoptima.sim.processes.worker import REPORT_AFTER
from fedoptima.sim.processes.worker_pool import WorkerPool

# CPU seconds of VGG-5 with batches of 50, in worker processes of one thread (2026-11-16).
SECONDS = {"Forward": 0.0245, "AuxiliaryStep": 0.0271, "ServerStep": 0.0102, "FullStep": 0.06}
OTHERS = 0.001  # to load, export, merge, release, ...
MESSAGE = 0.0001  # for the driving process to write or to read one
JOB = 0.0001  # for it to go on to the next job
_BYTES = 2**21  # of a model; how many does not matter


@dataclass
class Worker:
    messages: list[list[Order]] = field(default_factory=list)
    first: deque[Order] = field(default_factory=deque)
    orders: deque[Order] = field(default_factory=deque)
    order: Order | None = None  # that it works on
    until: float = 0.0
    done: list[Done] = field(default_factory=list)
    reported: float = 0.0
    times: list[tuple[float, float, str]] = field(default_factory=list)  # begin, end, what

    @property
    def busy(self) -> float:
        return sum(end - begin for begin, end, _ in self.times)

    def gaps(self) -> list[tuple[float, float]]:
        """(when, how long) it had nothing to do, the longest first."""
        found = [(one[1], other[0] - one[1]) for one, other in pairwise(self.times)]
        return sorted(found, key=lambda gap: -gap[1])


class ModelledCrew(WorkerPool):
    def __init__(self, count: int, seconds: Mapping[str, float]) -> None:
        self.workers = [Worker() for _ in range(count)]
        self.now = 0.0  # of the driving process
        self.messages = 0
        self._seconds = seconds
        self._reports: list[tuple[float, int, list[Done]]] = []
        self._memory = 0

    def send(self, worker: int, orders: list[Order]) -> None:
        self.now += MESSAGE
        self.messages += 1
        self._pass_time()
        self.workers[worker].messages.append(orders)
        if self.workers[worker].order is None:
            self._begin(self.workers[worker], self.now)

    def receive(self, take: Callable[[int, list[Done]], None], *, wait: bool) -> None:
        self.now += MESSAGE if wait else JOB
        self._pass_time()
        while wait and not self._reports:
            self.now = min(w.until for w in self.workers if w.order is not None)
            self._pass_time()
        reports, self._reports = self._reports, []
        for _, worker, done in reports:
            take(worker, done)

    def end(self) -> None: ...

    def _pass_time(self) -> None:
        """Until now, as it is for the driving process."""
        while busy := [w for w in self.workers if w.order is not None and w.until <= self.now]:
            self._finish(min(busy, key=lambda worker: worker.until))

    def _begin(self, worker: Worker, at: float) -> None:
        """As a real one: it reads its messages first, and the server's jobs are urgent."""
        for message in worker.messages:
            for order in message:
                urgent = order.node == SERVER or isinstance(order.work, Release)
                (worker.first if urgent else worker.orders).append(order)
        worker.messages = []
        queue = worker.first or worker.orders
        worker.order = queue.popleft() if queue else None
        if worker.order is not None:
            what = type(worker.order.work).__name__
            worker.until = at + self._seconds.get(what, OTHERS)
            worker.times.append((at, worker.until, what))

    def _finish(self, worker: Worker) -> None:
        order, now = worker.order, worker.until
        assert order is not None
        worker.done.append(self._reply(order))
        if not (worker.first or worker.orders) or now - worker.reported >= REPORT_AFTER:
            self._reports.append((now, self.workers.index(worker), worker.done))
            worker.done, worker.reported = [], now
        self._begin(worker, now)

    def _reply(self, order: Order) -> Done:
        """Places are made up: nobody looks at what is there."""
        work, seconds = order.work, self._seconds.get(type(order.work).__name__, OTHERS)
        made = order.declared is not None and order.declared.nbytes > 0
        place = self._place() if made or isinstance(work, LoadModel | Snapshot) else None
        parts = isinstance(work, Release) or (isinstance(work, ExportModel) and not work.keep)
        if not parts:
            return Done(order.number, order.buffer or place, seconds=seconds)
        return Done(order.number, place, book={}, aside=self._place(), seconds=seconds)

    def _place(self) -> Place:
        self._memory += _BYTES
        return Place(self._memory, _BYTES)


class Modelled(Processes):
    """Everything but tensors."""

    def __init__(self, experiment: Experiment, workers: int, seconds: Mapping[str, float]) -> None:
        def build(_: object) -> object:
            raise AssertionError("a modelled worker has no engines")

        super().__init__(experiment.workload, experiment.batches, build, workers)  # type: ignore[arg-type]
        self.pool = ModelledCrew(workers, seconds)

    def _engage(self, plan: Plan) -> WorkerPool:
        return self.pool

    def evaluate(self) -> Metrics:
        self._snapshot()
        return ()

    def settle(self) -> None:
        schedule = self._started()
        schedule.wait(schedule.all_done)


def model(experiment: Experiment, seconds: Mapping[str, float] = SECONDS) -> ModelledCrew:
    """The pool after a run with two workers."""
    executor = Modelled(experiment, 2, seconds)
    build_simulation(experiment, executor, lambda: executor.plan, []).run()
    executor.settle()
    return executor.pool


def bound(pool: ModelledCrew) -> float:
    """The larger of half of all work and of the server's steps one after another."""
    times = [time for worker in pool.workers for time in worker.times]
    chain = sum(end - begin for begin, end, what in times if what == "ServerStep")
    return max(sum(end - begin for begin, end, _ in times) / len(pool.workers), chain)


def measure(seconds: Mapping[str, float] = SECONDS) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "images.pt")
        store_images(WORKLOAD, data)
        pool = model(prepare(recipe(WORKLOAD, data)), seconds)
    return {
        "what": f"{WORKLOAD}: 2 modelled workers against half of their work, or the server's chain",
        "ratio": pool.now / bound(pool),
        "at most": 1.1,
        "modelled seconds": pool.now,
        "seconds of work": [worker.busy for worker in pool.workers],
        "messages": pool.messages,
        "longest gaps (at, seconds)": [worker.gaps()[:5] for worker in pool.workers],
        "seconds of a job": dict(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", nargs="*", default=[], metavar="KIND=SECONDS")
    given = dict(one.split("=") for one in parser.parse_args().seconds)
    show("modelled_workers", measure({**SECONDS, **{k: float(v) for k, v in given.items()}}))


if __name__ == "__main__":
    main()
