"""A browser's side of an event stream, without a network: the application is called directly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Message

State = dict[str, Any]


class Events:
    """What the page knows: sections as they were last sent."""

    def __init__(self, sent: asyncio.Queue[Message]) -> None:
        self.state: State = {}
        self.sizes: list[int] = []
        self._sent = sent

    async def next(self) -> State:
        """The next message's news."""
        while True:
            async with asyncio.timeout(120):
                message = await self._sent.get()
            text = message.get("body", b"").decode()
            if text.startswith("data: "):
                news: State = json.loads(text.removeprefix("data: "))
                self.sizes.append(len(text))
                self.state |= news
                return news

    async def until(self, section: str, key: str, wanted: object) -> State:
        while self.state.get(section, {}).get(key) != wanted:
            await self.next()
        return self.state


@asynccontextmanager
async def listening(app: ASGIApp, query: str) -> AsyncIterator[Events]:
    sent: asyncio.Queue[Message] = asyncio.Queue()
    leave = asyncio.Event()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/events",
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1:8050")],
    }

    async def receive() -> Message:
        await leave.wait()
        return {"type": "http.disconnect"}

    call = asyncio.create_task(_call(app, scope, receive, sent.put))
    try:
        yield Events(sent)
    finally:
        leave.set()
        async with asyncio.timeout(120):
            await call


async def _call(app: ASGIApp, *arguments: Any) -> None:
    await app(*arguments)
