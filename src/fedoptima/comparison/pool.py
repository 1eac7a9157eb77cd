"""Many runs: which are waiting, which go on, how each ended. Where they are executed is a pool's
business: processes of this machine, or a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from fedoptima.comparison.execution import Order, RunState

PoolObserver = Callable[[Sequence[RunState]], None]  # called about ten times a second


@dataclass(frozen=True)
class Lost:
    """A run whose worker has ended without saying how the run went."""

    reason: str


class Workers(Protocol):
    """Where runs are executed. Each is known by its index among the orders."""

    def has_room(self) -> bool: ...

    def start(self, index: int, order: Order) -> None: ...

    def news(self) -> Iterable[tuple[int, RunState | Lost]]:
        """What has become known; waits for a tenth of a second at most."""

    def stop(self) -> None:
        """Ask all runs to save a checkpoint and to end."""


Pool = AbstractContextManager[Workers]  # on exit, whatever still works is ended at once


def run_all(
    orders: Sequence[Order],
    pool: Pool,
    *,
    observer: PoolObserver = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[RunState]:
    """Execute all orders and return how each ended.

    Once ``interrupted`` returns True, started runs save a checkpoint and end as "stopped", and no
    other is started. An exception in here (a second Ctrl-C) ends all workers at once.
    """
    states = [RunState.of(order) for order in orders]
    waiting = deque(range(len(orders)))
    running: set[int] = set()
    stopping = False
    if not orders:
        return states
    with pool as workers:
        while running or (waiting and not stopping):
            while waiting and not stopping and workers.has_room():
                index = waiting.popleft()
                running.add(index)
                workers.start(index, orders[index])
            for index, news in workers.news():
                if isinstance(news, Lost):
                    news = replace(states[index], phase="failed", error=news.reason)
                states[index] = news
                if news.over:
                    running.discard(index)
            observer(tuple(states))
            if not stopping and interrupted():
                stopping = True
                workers.stop()
    return states
