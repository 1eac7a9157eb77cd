"""What a second Ctrl-C does to a program whose callbacks cannot be left by an exception."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

import pytest

from fedoptima.display.interrupt import Interrupt

LIMIT = 30.0  # seconds, for what takes milliseconds


def press_where_nothing_can_be_raised() -> None:
    with suppress(BaseException):  # as gRPC's callbacks do, which are called from C
        signal.raise_signal(signal.SIGINT)


def test_a_second_interrupt_in_a_callback_that_drops_exceptions_ends_the_event_loop() -> None:
    async def serve() -> None:
        press_where_nothing_can_be_raised()
        assert interrupted(), "the first is a wish"
        press_where_nothing_can_be_raised()
        await asyncio.sleep(LIMIT)
        raise AssertionError("nobody heard the second one")

    with Interrupt(lambda _: None) as interrupted:
        interrupted()
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(serve())


def test_a_third_interrupt_does_not_wait_for_an_event_loop_that_hangs() -> None:
    async def hang() -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    with Interrupt(lambda _: None) as interrupted, suppress(KeyboardInterrupt):
        interrupted()
        asyncio.run(hang())


def test_inside_a_notebooks_event_loop_a_second_interrupt_is_raised_where_it_comes() -> None:
    async def cell() -> None:
        with Interrupt(lambda _: None) as interrupted:
            interrupted()
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    asyncio.run(cell())
