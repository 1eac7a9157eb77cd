from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from fedoptima.runtime.compute import Compute


class Short:
    """A kind of job."""


class Long:
    """Another."""


def busy(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


class Jobs:
    """Gives jobs to a compute and keeps what becomes of them."""

    def __init__(self, compute: Compute) -> None:
        self.log: list[str] = []
        self.here: set[str] = set()  # those that were done on the event loop's thread
        self._compute = compute
        self._loop = threading.get_ident()
        self._working = threading.Lock()

    def give(self, name: str, kind: type | None, seconds: float = 0.0) -> asyncio.Future[str]:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def work() -> str:
            assert self._working.acquire(blocking=False), "two jobs at the same time"
            try:
                self.log.append(name)
                if threading.get_ident() == self._loop:
                    self.here.add(name)
                busy(seconds)
                if name.startswith("bad"):
                    raise ValueError(name)
            finally:
                self._working.release()
            return name

        self._compute.submit(work, answer.set_result, answer.set_exception, kind)
        assert not answer.done(), "answered at once"
        return answer


def story(tell: Callable[[Jobs], Awaitable[None]], *, short_here: bool = True) -> Jobs:
    async def run() -> Jobs:
        compute = Compute("test", threads=1, short_here=short_here)
        try:
            jobs = Jobs(compute)
            await asyncio.wait_for(tell(jobs), 120)
            return jobs
        finally:
            compute.close()

    return asyncio.run(run())


async def many_of_both(jobs: Jobs) -> None:
    for number in range(20):
        assert await jobs.give(f"short {number}", Short) == f"short {number}"
        await jobs.give(f"long {number}", Long, 0.003)
        await jobs.give(f"unknown {number}", None)


def test_only_kinds_that_were_short_are_done_on_the_event_loop() -> None:
    jobs = story(many_of_both)
    assert len(jobs.log) == 60
    assert "short 0" not in jobs.here  # nothing was known of it
    assert jobs.here
    assert all(name.startswith("short") for name in jobs.here)


def test_all_is_done_on_the_thread_unless_it_is_asked_for() -> None:
    assert not story(many_of_both, short_here=False).here


def test_jobs_are_done_one_at_a_time_and_in_the_order_given() -> None:
    async def tell(jobs: Jobs) -> None:
        await jobs.give("first", Short)
        given = list[str]()
        for number in range(10):
            names = [f"short {number}", f"evaluation {number}", f"short again {number}"]
            given += names
            await asyncio.gather(
                jobs.give(names[0], Short), jobs.give(names[1], None), jobs.give(names[2], Short)
            )
        assert jobs.log == ["first", *given]

    jobs = story(tell)
    assert any(name.startswith("short") for name in jobs.here)
    assert not any("again" in name for name in jobs.here)


def test_a_job_that_fails_on_the_event_loop_is_answered_as_elsewhere() -> None:
    async def tell(jobs: Jobs) -> None:
        for number in range(10):
            await jobs.give(f"short {number}", Short)
            with pytest.raises(ValueError, match=f"bad {number}"):
                await jobs.give(f"bad {number}", Short)

    assert any(name.startswith("bad") for name in story(tell).here)


def test_a_kind_with_a_long_job_now_and_then_does_not_hold_up_the_event_loop_each_time() -> None:
    async def tell(jobs: Jobs) -> None:
        for number in range(6):
            for _ in range(60):  # as many as it took to forget the long one
                await jobs.give("short", Short)
            await jobs.give(f"long {number}", Short, 0.03)

    here = story(tell).here
    assert "short" in here
    assert len(here - {"short"}) <= 1


def test_what_has_not_begun_when_it_is_closed_is_not_done() -> None:
    async def tell(jobs: Jobs) -> None:
        while "last" not in jobs.here:  # until a job of that kind would be done here
            await jobs.give("last", Short)
        jobs.log.clear()
        errors = list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        answers = [jobs.give("too late", Short), jobs.give("behind it", Short)]
        jobs._compute.close()
        await asyncio.sleep(0.01)
        assert not jobs.log
        assert not any(answer.done() for answer in answers)
        assert not errors

    story(tell)
