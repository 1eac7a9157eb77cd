"""The gateways as the server sees them: it starts them, and their sessions are its own."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, cast

from torch import Tensor

from fedoptima.core.errors import ConfigError, FedOptimaError, InvariantBroken, ProtocolViolation
from fedoptima.core.messages import Message
from fedoptima.engine.gpu_upload import Staged
from fedoptima.engine.server_admission import Expected
from fedoptima.runtime.address import Address, bind_error
from fedoptima.runtime.gateway.arena import Arena, Block, Stored, create
from fedoptima.runtime.gateway.link import Link, put_together, taken_apart
from fedoptima.runtime.gateway.messages import (
    Acknowledge,
    Answer,
    Answers,
    Arrived,
    Ask,
    Carrier,
    Closed,
    Deliver,
    End,
    Expect,
    Farewell,
    Free,
    Key,
    Knock,
    Listening,
    Records,
    Said,
    Start,
    Wrong,
)
from fedoptima.runtime.gateway.process import start_process
from fedoptima.runtime.gateway.remote_session import RemoteSession
from fedoptima.runtime.server.reception import NodeReception, Refused, Visitor
from fedoptima.runtime.server.server_node import ServerNode
from fedoptima.runtime.server.session import Refusal
from fedoptima.trace.record import Record

_MOST_ARENA: Final = 16 << 30  # bytes of addresses, not of memory
_MESSAGES: Final = 8  # of the largest kind, for which an arena has room
_STARTED: Final = 60.0  # seconds: loading torch takes some, on a busy machine many
_FREED: Final = 0.05  # seconds that memory may wait to be told of, if there is nothing else
_SOON: Final = 10.0  # seconds; a gateway that ends so early ends for a reason that stays
_MOST_FAILURES: Final = 3  # of one gateway, one soon after the other


class Gateway:
    """One of them: its process, and the link to it."""

    def __init__(self, hub: Gateways, number: int) -> None:
        self.sessions: dict[Key, RemoteSession] = {}
        self.began = time.monotonic()
        self._hub = hub
        self._number = number
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._freed: deque[Block] = deque()  # and not told yet
        self._freeing = False  # they will be
        self._uploads: deque[tuple[Staged, dict[str, Tensor]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, start: Start, address: Address) -> None:
        """Returns when it listens."""
        ours, theirs = socket.socketpair()
        nbytes = min(_MESSAGES * start.limit, _MOST_ARENA)
        descriptors = [create(nbytes), create(nbytes)]
        self._inbound, self._outbound = map(Arena, descriptors)
        given = [theirs.fileno(), *descriptors]
        self.process = start_process(given)
        theirs.close()
        for descriptor in descriptors:
            os.close(descriptor)
        self._link = await Link.over(ours)
        self._link.tell(start)
        self._link.tell(address)
        self._heard = self._link.heard()
        try:
            async with asyncio.timeout(_STARTED):
                first = await anext(self._heard, None)
                while isinstance(first, Said):
                    self._hear(first)
                    first = await anext(self._heard, None)
        except TimeoutError:
            first = None
        if not isinstance(first, Listening) or first.problem:
            self.kill()
            said = first.problem if isinstance(first, Listening) else "it ended at once"
            raise FedOptimaError(f"gateway {self._number} did not start: {said}")

    async def run(self) -> None:
        """Until the process has ended."""
        async for what in self._heard:
            self._hear(what)
        self._ended = True
        for session in list(self.sessions.values()):
            self._hub.node.closed(session, "its gateway has ended")
        self.sessions.clear()
        self._link.close()
        await asyncio.to_thread(self.process.wait)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._link.close()

    # ---- to the gateway ----------------------------------------------------------------------

    def expect(self, expected: Expected) -> None:
        self._link.tell(Expect(expected))

    def deliver(self, key: Key, message: Message) -> None:
        self._tell_freed()
        self._link.tell(Deliver(key, *taken_apart(message, self._outbound)))

    def end(self, key: Key, refusal: Refusal | None) -> None:
        self.sessions.pop(key, None)
        self._link.tell(End(key, refusal))

    def ask(self, key: Key, patience: float) -> None:
        self._link.tell(Ask(key, patience))

    def say_farewell(self) -> None:
        self._link.tell(Farewell())

    # ---- from the gateway --------------------------------------------------------------------

    def _hear(self, what: object) -> None:
        match what:
            case Knock(ticket, visitor):
                task = asyncio.create_task(self._admit(ticket, visitor))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Arrived(key, bare, tensors):
                self._receive(key, bare, tensors)
            case Records(key, first, lines, offset):
                self._take_records(key, first, lines, offset)
            case Wrong(key, error):
                if (session := self.sessions.pop(key, None)) is not None:
                    self._hub.node.reject(session, error)
            case Closed(key, why):
                if (session := self.sessions.pop(key, None)) is not None:
                    self._hub.node.closed(session, why)
            case Answers(key, answers):
                if (session := self.sessions.get(key)) is not None:
                    session.answered(answers)
            case Free(blocks):
                for block in blocks:
                    self._outbound.give_back(block)
            case Said(level, text, device):
                extra = None if device is None else {"device": device}
                self._hub.node.log.log(level, "%s", text, extra=extra)
            case _:
                raise InvariantBroken(f"a gateway does not tell {type(what).__name__}")

    async def _admit(self, ticket: int, visitor: Visitor) -> None:
        node = self._hub.node
        try:
            admitted = await self._hub.reception.admit(visitor)
        except Refused as refused:
            self._link.tell(Answer(ticket, refused.refusal))
            return
        if self._ended:
            return
        session = RemoteSession(self, visitor, admitted.session)
        self.sessions[session.key] = session
        self._link.tell(Answer(ticket, admitted))
        node.opened(session)

    def _receive(self, key: Key, bare: Message, tensors: Stored | dict[str, Tensor] | None) -> None:
        found = tensors
        if isinstance(tensors, Stored):
            if self._hub.pinned:
                self._inbound.pin(tensors.block)
            found = self._inbound.read(tensors, self._free)
        session = self.sessions.get(key)
        if session is None:
            return
        message = put_together(bare, cast("dict[str, Tensor] | None", found))
        checked = self._hub.node.engine.receive(message)
        self._keep_until_copied(checked, message)
        try:
            self._hub.node.receive(session, message, checked)
        except ProtocolViolation as error:
            self._hub.node.reject(session, error)

    def _keep_until_copied(self, checked: Message, message: Message) -> None:
        """What a GPU copies from must not be overwritten before."""
        while self._uploads and self._uploads[0][0].copied:
            self._uploads.popleft()
        if isinstance(checked, Carrier) and isinstance(checked.data.value, Staged):
            source = cast("dict[str, Tensor]", cast(Carrier, message).data.value)
            self._uploads.append((checked.data.value, source))

    def _free(self, block: Block) -> None:
        """On any thread: the last who has a tensor may be the one who trains."""
        self._freed.append(block)
        if not self._freeing:  # until then it goes with what is told before
            self._freeing = True
            with suppress(RuntimeError):  # the loop is closed: nobody needs it any more
                self._loop.call_soon_threadsafe(self._loop.call_later, _FREED, self._free_all)

    def _free_all(self) -> None:
        self._freeing = False
        self._tell_freed()

    def _tell_freed(self) -> None:
        if count := len(self._freed):
            self._link.tell(Free(tuple(self._freed.popleft() for _ in range(count))))

    def _take_records(self, key: Key, first: int, lines: list[str], offset: float | None) -> None:
        session = self.sessions.get(key)
        if session is None:
            return
        session.clock.offset = offset
        try:
            records = self._hub.node.take_records(session, first, lines)
        except ProtocolViolation as error:
            self._hub.node.reject(session, error)
            return
        self._link.tell(Acknowledge(key, records))


class Gateways:
    def __init__(
        self,
        node: ServerNode,
        reception: NodeReception,
        start: Start,
        *,
        count: int,
        expected: Callable[[], Expected],
        pinned: bool,
    ) -> None:
        """``start``: what each is told. ``expected``: what devices may send
        now. ``pinned``: a GPU copies from what they send."""
        self.node = node
        self.reception = reception
        self.pinned = pinned
        self._start = start
        self._count = count
        self._expected = expected
        self._told: Expected | None = None
        self._log: logging.Logger = node.log
        self._open: dict[int, Gateway] = {}
        self._tasks: list[asyncio.Task[None]] = []
        node.observers.append(self._look_at_plan)

    def bind(self, address: Address) -> Address:
        """Take the port, which the system chooses where it is 0."""
        self._port = _reserved(address)
        found = replace(address, port=self._port.getsockname()[1])
        self._address = found
        return found

    async def open(self) -> None:
        """Returns when all of them listen."""
        self._log.info("starting %d gateways", self._count)
        self._told = self._expected()
        starts = [self._opened(number) for number in range(1, self._count + 1)]
        for opened in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(opened, BaseException):
                raise opened
            self._tasks.append(asyncio.create_task(self._keep(opened)))

    async def _opened(self, number: int) -> tuple[int, Gateway]:
        gateway = Gateway(self, number)
        await gateway.open(self._start, self._address)
        gateway.expect(self._expected())
        self._open[number] = gateway
        return number, gateway

    async def _keep(self, opened: tuple[int, Gateway]) -> None:
        """One that ends is replaced: its devices come back by themselves, to any of them."""
        number, gateway = opened
        failures = 0
        while True:
            await gateway.run()
            if self.reception.closing or self.node.outcome.done():
                return
            status = gateway.process.returncode
            self._log.warning("gateway %d has ended (status %d); starting another", number, status)
            failures = failures + 1 if time.monotonic() - gateway.began < _SOON else 0
            try:
                if failures >= _MOST_FAILURES:
                    raise FedOptimaError(
                        f"gateway {number} has ended {failures} times right after its start; the "
                        "log above says why, or start the server without --gateways"
                    )
                _, gateway = await self._opened(number)
            except Exception as error:
                self.node.fail(error)
                return

    def _look_at_plan(self, _: Record) -> None:
        """Told before the devices get to know the plan: what follows on the link is later."""
        expected = self._expected()
        if expected is not self._told:
            self._told = expected
            for gateway in self._open.values():
                gateway.expect(expected)

    def enforce_access(self) -> None:
        """The gateways do."""

    async def farewell(self) -> None:
        self.reception.closing = True
        for gateway in self._open.values():
            gateway.say_farewell()
        patience = self._start.timeouts.farewell + 2 * self._start.timeouts.ping_answer
        _, late = await asyncio.wait(self._tasks, timeout=patience)  # there is one at least
        if late:
            self._log.warning("%d gateways did not end in time", len(late))

    async def close(self) -> None:
        """At the end of the run, however it ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for gateway in self._open.values():
            if gateway.process.poll() is None:
                gateway.kill()
        self._port.close()


def _reserved(address: Address) -> socket.socket:
    """The port, for this server's gateways alone: a second server there is an error."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    where = (address.host, address.port)
    try:
        socket.create_server(where, family=family).close()
        reserved = socket.socket(family)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(where)
    except OSError as error:
        raise ConfigError(bind_error(address)) from error
    return reserved
