"""What is told over a link is heard whole and in order, however it is cut on the way."""

from __future__ import annotations

import asyncio
import socket

from fedoptima.runtime.gateway.link import Link
from fedoptima.runtime.gateway.messages import Said


def told(number: int) -> Said:
    return Said(number, "x" * (number * 1_000), None)  # up to 600 kB: more than one reading takes


def test_everything_that_is_told_is_heard_in_order_until_the_other_ends() -> None:
    async def talk() -> list[object]:
        one, other = socket.socketpair()
        speaker, listener = await Link.over(one), await Link.over(other)
        heard = list[object]()

        async def listen() -> None:
            async for what in listener.heard():
                heard.append(what)

        listening = asyncio.create_task(listen())
        for number in (*range(50), 600, 1):
            speaker.tell(told(number))
        await speaker.flush()
        speaker.tell(told(2))
        speaker.close()  # what was told before is written
        await listening
        listener.close()
        return heard

    assert asyncio.run(talk()) == [told(number) for number in (*range(50), 600, 1, 2)]
