"""The compute thread of a node: one thing at a time, in the order given, answers on the event loop.

torch lets other threads run while it computes, so the event loop sends and receives meanwhile. A
server does jobs that are over at once on the event loop itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from fedoptima.engine.determinism import prepare_thread

_SHORT: Final = 2e-3  # seconds
_HOLD_UP: Final = 1e-2  # seconds on the event loop that others notice
_FADING: Final = 0.1  # what each job of a kind takes off the kind's longest time
_SLOWER: Final = 0.1  # is that multiplied by after each hold-up: it must not come again and again

T = TypeVar("T")


class Compute:
    def __init__(self, name: str, *, threads: int | None = None, short_here: bool = False) -> None:
        """``threads``: what torch may use inside a job; None: as many as it takes by itself.

        ``short_here``: kinds of jobs that take less than 2 ms are done on the event loop: to hand
        one to a thread and its answer back takes about as long on busy cores.
        """
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix=name, initializer=prepare_thread, initargs=(threads,)
        )
        self._short_here = short_here
        self._took: dict[type, float] = {}  # seconds: the longest of each kind's last ones, about
        self._hold_ups: Counter[type] = Counter()  # of the event loop, by each kind
        self._given = 0  # jobs that the thread has not answered
        self._here = False  # a job is to be done on the event loop, or is being done
        self._behind: deque[Callable[[], None]] = deque()  # those that wait for it
        self._closed = False

    def submit(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        kind: type | None = None,
    ) -> None:
        """Exactly one of ``done`` and ``failed`` is called, on the running event loop, later.

        ``kind``: of work that takes about as long each time; None: it is done on the thread.
        """
        loop = asyncio.get_running_loop()
        if self._here:
            self._behind.append(lambda: self._give(loop, work, done, failed, kind))
        elif (
            self._short_here
            and not self._given
            and kind is not None
            and self._took.get(kind, _SHORT) < _SHORT
        ):
            self._here = True
            loop.call_soon(self._do_here, work, done, failed, kind)
        else:
            self._give(loop, work, done, failed, kind)

    def _give(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        kind: type | None,
    ) -> None:
        """To the thread."""

        def answer(future: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed: the answer is no longer needed
                loop.call_soon_threadsafe(deliver, future)

        def deliver(future: Future[T]) -> None:
            self._given -= 1
            _deliver(future, done, failed)

        self._given += 1
        self._executor.submit(lambda: self._timed(work, kind)).add_done_callback(answer)

    def _do_here(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        kind: type | None,
    ) -> None:
        if self._closed:
            self._here = False
            return
        answer: Callable[[], None]
        try:
            answer = partial(done, self._timed(work, kind, here=True))
        except Exception as error:
            answer = partial(failed, error)
        self._here = False
        while self._behind and not self._closed:
            self._behind.popleft()()
        answer()

    def _timed(self, work: Callable[[], T], kind: type | None, *, here: bool = False) -> T:
        if kind is None:
            return work()
        began = time.thread_time()
        try:
            return work()
        finally:
            took = time.thread_time() - began
            if here and took > _HOLD_UP:
                self._hold_ups[kind] += 1
            fading = _FADING * _SLOWER ** self._hold_ups.get(kind, 0)
            self._took[kind] = max(took, (1 - fading) * self._took.get(kind, took))

    async def do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """What has not begun is not done any more; what is running is not waited for."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)


def _deliver(
    future: Future[T], done: Callable[[T], None], failed: Callable[[Exception], None]
) -> None:
    if future.cancelled():
        return
    error = future.exception()
    if error is None:
        done(future.result())
    elif isinstance(error, Exception):
        failed(error)
    else:
        raise error
