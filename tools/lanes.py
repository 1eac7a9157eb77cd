"""Jobs side by side, a process for each lane; a process keeps the data it has loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from typing import Any, TypeVar

Result = dict[str, Any]
J = TypeVar("J")


def pool_of(lanes: int) -> AbstractContextManager[Executor | None]:
    """One lane needs no other process."""
    return nullcontext() if lanes == 1 else ProcessPoolExecutor(lanes, get_context("spawn"))


def results_of(
    do: Callable[[J], Result],
    jobs: Sequence[J],
    pool: Executor | None,
    lanes: int,
    deadline: float = float("inf"),
) -> Iterator[tuple[J, Result]]:
    """Jobs with their results, in the order in which they end; none begins after the deadline."""
    if pool is None:
        yield from ((job, do(job)) for job in jobs if time.monotonic() < deadline)
        return
    waiting, running = list(jobs), dict[Future[Result], J]()
    while True:
        while waiting and len(running) < lanes and time.monotonic() < deadline:
            job = waiting.pop(0)
            running[pool.submit(do, job)] = job
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()
