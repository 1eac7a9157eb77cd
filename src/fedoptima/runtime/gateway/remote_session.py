"""A session whose connection is a gateway's, as the server needs it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fedoptima.core.messages import Message
from fedoptima.runtime.clock import OffsetClock
from fedoptima.runtime.gateway.messages import Key
from fedoptima.runtime.server.reception import Visitor
from fedoptima.runtime.server.session import Refusal


class SessionGateway(Protocol):
    def deliver(self, key: Key, message: Message) -> None: ...
    def end(self, key: Key, refusal: Refusal | None) -> None: ...
    def ask(self, key: Key, patience: float) -> None: ...


class _RemoteOutbox:
    held = 0  # the gateway looks after what a device does not read

    def __init__(self, gateway: SessionGateway, key: Key) -> None:
        self._gateway = gateway
        self._key = key

    def put(self, message: Message) -> None:
        self._gateway.deliver(self._key, message)


class RemoteSession:
    def __init__(self, gateway: SessionGateway, visitor: Visitor, number: int) -> None:
        self.device = visitor.device
        self.number = number
        self.process = visitor.process
        self.peer = visitor.peer
        self.clock = OffsetClock()  # as the gateway has read it
        self.key: Key = (visitor.device, number)
        self.outbox = _RemoteOutbox(gateway, self.key)
        self._gateway = gateway
        self._answer: asyncio.Future[bool] | None = None

    def end(self, refusal: Refusal | None = None) -> None:
        self._gateway.end(self.key, refusal)

    async def answers(self, now: float, patience: float) -> bool:
        if self._answer is None or self._answer.done():
            self._answer = asyncio.get_running_loop().create_future()
            self._gateway.ask(self.key, patience)
        try:
            async with asyncio.timeout(2 * patience):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            return False

    def answered(self, answers: bool) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answers)
