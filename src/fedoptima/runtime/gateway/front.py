"""A gateway's own process: takes devices' connections, decodes and checks what they send.

To the streams it is the server; to the server it is where sessions come from. It decides nothing:
who is let in, and all that follows from a message, is the server's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError, InvariantBroken, ProtocolViolation, Unresponsive
from fedoptima.core.messages import Message
from fedoptima.core.ranges import check_names
from fedoptima.engine.server_admission import Expected
from fedoptima.runtime.address import Address
from fedoptima.runtime.gateway.arena import Arena, Block, Stored
from fedoptima.runtime.gateway.link import Link, put_together, taken_apart
from fedoptima.runtime.gateway.messages import (
    Acknowledge,
    Answer,
    Answers,
    Arrived,
    Ask,
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
from fedoptima.runtime.gateway.process import ASK_TO_STOP
from fedoptima.runtime.native_memory import kept_small
from fedoptima.runtime.server.bounds import message_limit, most_held, unread
from fedoptima.runtime.server.reception import Admitted, Refused, Visitor
from fedoptima.runtime.server.server_node import Checked
from fedoptima.runtime.server.session import Refusal, Session, refusal_for
from fedoptima.runtime.server.streams import ServerStreams

_ACCESS_EVERY: Final = 0.2  # seconds

LOG = logging.getLogger("fedoptima.server")


class Front:
    """What stands for the server in this process."""

    def __init__(
        self, link: Link, inbound: Arena, outbound: Arena, clock: Callable[[], float]
    ) -> None:
        """``inbound``: for what devices send, written here. ``outbound``: for what they get."""
        self.log = LOG
        self.clock = clock
        self.closing = False
        self._link = link
        self._inbound = inbound
        self._outbound = outbound
        self._loop = asyncio.get_running_loop()
        self._expected = Expected(0)
        self._tickets = itertools.count()
        self._knocks: dict[int, tuple[Visitor, asyncio.Future[Admitted | Refusal]]] = {}
        self._sessions: dict[Key, Session] = {}
        self._early: dict[Key, list[Message]] = {}  # for sessions that are about to be opened
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- for the streams ---------------------------------------------------------------------

    async def admit(self, visitor: Visitor) -> Admitted:
        ticket = next(self._tickets)
        waiting: asyncio.Future[Admitted | Refusal] = self._loop.create_future()
        self._knocks[ticket] = visitor, waiting
        self._link.tell(Knock(ticket, visitor))
        try:
            answer = await waiting
        except asyncio.CancelledError:  # it has hung up
            found = None if waiting.cancelled() else waiting.result()
            if isinstance(found, Admitted):
                self._give_up((visitor.device, found.session))
            raise
        if isinstance(answer, Refusal):
            raise Refused(answer.code, answer.text)
        return answer

    def opened(self, session: Session) -> None:
        key = _key(session)
        self._sessions[key] = session
        for message in self._early.pop(key, []):
            self._put(session, message)

    def closed(self, session: Session, why: str = "") -> None:
        """May be called again."""
        if self._sessions.pop(_key(session), None) is not None:
            self._link.tell(Closed(_key(session), why))

    def limit(self, kind: type[Message]) -> int:
        return message_limit(self._expected.most_bytes, kind)

    async def prepare(self, message: Message, fill: Callable[[], None]) -> Checked:
        raise InvariantBroken("a gateway fills tensors as their bytes come")

    def receive(self, session: Session, message: Message, checked: Checked | None = None) -> None:
        if _key(session) not in self._sessions:
            return
        check_names(session.device, message)
        self._expected.check(message)
        self._link.tell(Arrived(_key(session), *taken_apart(message, self._inbound)))

    def reject(self, session: Session, error: ProtocolViolation) -> None:
        if self._sessions.pop(_key(session), None) is not None:
            self._link.tell(Wrong(_key(session), error))
            session.end(refusal_for(error))

    def take_records(self, session: Session, first: int, lines: Sequence[str]) -> int | None:
        if _key(session) in self._sessions:
            offset = session.clock.offset
            self._link.tell(Records(_key(session), first, list(lines), offset))
        return None

    def place(self, forms: Any) -> dict[str, Tensor] | None:
        return self._inbound.place(forms)

    # ---- from the server ---------------------------------------------------------------------

    def hear(self, what: object) -> None:
        match what:
            case Answer(ticket, answer):
                self._answer(ticket, answer)
            case Expect(expected):
                self._expected = expected
            case Deliver(key, bare, tensors):
                self._deliver(key, put_together(bare, self._read(tensors)))
            case Acknowledge(key, records):
                if (session := self._sessions.get(key)) is not None:
                    session.acknowledge(records)
            case End(key, refusal):
                if (session := self._sessions.pop(key, None)) is not None:
                    session.end(refusal)
            case Ask(key, patience):
                self._in_background(self._ask(key, patience))
            case Free(blocks):
                for block in blocks:
                    self._inbound.give_back(block)
            case _:
                raise InvariantBroken(f"a gateway is not told {type(what).__name__}")

    def _answer(self, ticket: int, answer: Admitted | Refusal) -> None:
        visitor, waiting = self._knocks.pop(ticket)
        if isinstance(answer, Admitted):
            key = visitor.device, answer.session
            self._early[key] = []
            if waiting.cancelled():
                self._give_up(key)
        if not waiting.cancelled():
            waiting.set_result(answer)

    def _give_up(self, key: Key) -> None:
        """The server has opened a session whose device has hung up before it could begin."""
        del self._early[key]
        self._link.tell(Closed(key, "hung up"))

    def _deliver(self, key: Key, message: Message) -> None:
        if key in self._early:
            self._early[key].append(message)
        elif (session := self._sessions.get(key)) is not None:
            self._put(session, message)

    def _put(self, session: Session, message: Message) -> None:
        session.outbox.put(message)
        if session.outbox.held > most_held(self._expected.most_bytes):
            self.reject(session, Unresponsive(unread(session.outbox.held)))

    def _read(self, tensors: Stored | dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        return self._outbound.read(tensors, self._free) if isinstance(tensors, Stored) else tensors

    def _free(self, block: Block) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody needs it any more
            self._loop.call_soon_threadsafe(self._link.tell, Free((block,)))

    async def _ask(self, key: Key, patience: float) -> None:
        session = self._sessions.get(key)
        answers = session is not None and await session.answers(self.clock(), patience)
        self._link.tell(Answers(key, answers))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _key(session: Session) -> Key:
    return session.device, session.number


class _ToServer(logging.Handler):
    """Log lines appear in the server's log."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        said = Said(record.levelno, record.getMessage(), getattr(record, "device", None))
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._link.tell, said)


# ---- the process ---------------------------------------------------------------------------------


async def _run(end: socket.socket, inbound: Arena, outbound: Arena) -> None:
    async with kept_small():
        await _serve(end, inbound, outbound)


async def _serve(end: socket.socket, inbound: Arena, outbound: Arena) -> None:
    link = await Link.over(end)
    LOG.addHandler(_ToServer(link))
    LOG.propagate = False
    LOG.setLevel(logging.DEBUG)
    heard = link.heard()
    start = cast(Start | None, await anext(heard, None))
    address = cast(Address | None, await anext(heard, None))
    if start is None or address is None:  # the server has ended meanwhile
        return
    front = Front(link, inbound, outbound, lambda: start.clock + time.monotonic())
    streams = ServerStreams(
        front,
        front,
        start.recipe,
        limit=start.limit,
        tls=start.tls,
        access=start.access,
        timeouts=start.timeouts,
        connections=start.connections,
        shared_port=True,
        memory=front.place,
    )
    try:
        streams.bind(address)
        await streams.open()
    except ConfigError as error:
        link.tell(Listening(str(error)))
        await link.flush()
        return
    link.tell(Listening())
    beside: list[asyncio.Task[Any]] = [asyncio.create_task(_enforce_access(streams))]
    try:
        if await _until_farewell(front, heard):
            # Devices hand over their last records meanwhile, which are acknowledged.
            beside.append(asyncio.create_task(_until_farewell(front, heard)))
            await streams.farewell()
    finally:
        for task in beside:
            task.cancel()
        await streams.close()
        await link.flush()
        link.close()


async def _until_farewell(front: Front, heard: AsyncIterator[object]) -> bool:
    """False: the server's process has ended without one."""
    async for what in heard:
        if isinstance(what, Farewell):
            return True
        front.hear(what)
    return False


async def _enforce_access(streams: ServerStreams) -> None:
    while True:
        await asyncio.sleep(_ACCESS_EVERY)
        streams.enforce_access()


def main() -> None:
    """Its arguments are descriptors: of the socket, and of the memory for each direction."""
    for number in ASK_TO_STOP:  # for the server, which says farewell then
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    end, inbound, outbound = map(int, sys.argv[1:])
    asyncio.run(_run(socket.socket(fileno=end), Arena(inbound), Arena(outbound)))


if __name__ == "__main__":
    main()
