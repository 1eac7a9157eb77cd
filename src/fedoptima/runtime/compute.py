"""The compute thread of a node: one thing at a time, in the order given, answers on the event loop.

torch lets other threads run while it computes, so the event loop sends and receives meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from fedoptima.engine.determinism import prepare_thread

T = TypeVar("T")


class Compute:
    def __init__(self, name: str, *, threads: int | None = None) -> None:
        """``threads``: what torch may use inside a job; None: as many as it takes by itself."""
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix=name, initializer=prepare_thread, initargs=(threads,)
        )

    def submit(
        self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Exactly one of ``done`` and ``failed`` is called, on the running event loop."""
        loop = asyncio.get_running_loop()

        def answer(future: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed: the answer is no longer needed
                loop.call_soon_threadsafe(_deliver, future, done, failed)

        self._executor.submit(work).add_done_callback(answer)

    async def do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """What has not begun is not done any more; what is running is not waited for."""
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
