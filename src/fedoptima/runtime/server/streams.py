"""The server's ends of all streams: who may come in, and what becomes of each frame."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import grpc

from fedoptima.core.errors import ConfigError, ProtocolViolation, Unresponsive
from fedoptima.core.messages import Message
from fedoptima.core.text import printable
from fedoptima.core.types import NodeId
from fedoptima.runtime.address import Address, bind_error, peer_address
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.certificates import check_device_name
from fedoptima.runtime.security.tls import ServerTLS, peer_name, peer_serial
from fedoptima.runtime.server.descriptors import most_connections
from fedoptima.runtime.server.ping_ring import PingRing
from fedoptima.runtime.server.reception import Reception, Refused, Visitor
from fedoptima.runtime.server.server_node import Checked
from fedoptima.runtime.server.session import Refusal, Session
from fedoptima.runtime.timeouts import DEFAULT, Timeouts
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import METHOD, SERVICE, server_options
from fedoptima.runtime.wire.codec import INLINE_BYTES
from fedoptima.runtime.wire.frames import Chunk, Frame, deserialize, serialize
from fedoptima.runtime.wire.tensors import Memory
from fedoptima.runtime.wire.versions import refusal
from fedoptima.version import __version__

_NAME_LENGTH = 100
_OVER = Refusal(grpc.StatusCode.NOT_FOUND, "the run is over")
_PING_STEPS = 100  # into which the time between two pings of a device is divided
_GRACE = 0.2  # seconds, for streams that end
_MOST_UNREAD = 100  # frames that answer a device: one that never reads must not fill the memory

# grpc comes without types; a context is what reads, writes and ends one stream.
Context = Any


class StreamHost(Protocol):
    """The server, or what stands for it in another process."""

    log: logging.Logger
    clock: Callable[[], float]

    def opened(self, session: Session) -> None: ...
    def closed(self, session: Session, why: str = "") -> None: ...
    def limit(self, kind: type[Message]) -> int: ...
    async def prepare(self, message: Message, fill: Callable[[], None]) -> Checked: ...
    def receive(
        self, session: Session, message: Message, checked: Checked | None = None
    ) -> None: ...
    def reject(self, session: Session, error: ProtocolViolation) -> None: ...
    def take_records(self, session: Session, first: int, lines: Sequence[str]) -> int | None:
        """How many the server has; None: the answer comes later."""


class ServerStreams:
    def __init__(
        self,
        node: StreamHost,
        reception: Reception,
        recipe: str,
        *,
        limit: int,
        tls: ServerTLS | None = None,
        pinned: bool = False,
        aside: bool = False,
        access: AccessLists | None = None,
        timeouts: Timeouts = DEFAULT,
        connections: int | None = None,
        shared_port: bool = False,
        memory: Memory | None = None,
    ) -> None:
        """``recipe``: what every device is sent. ``limit``: bytes of the largest message taken,
        whatever the plan allows. ``tls``: None: connections are plain. ``pinned``: tensors come
        into memory that a GPU can copy from. ``aside``: they are filled, checked and copied on a
        thread of their own, for a GPU that trains faster than one thread can do all of it.
        ``connections``: at most; None: as many as the system allows. ``shared_port``: other
        processes listen on it, too. ``memory``: where tensors that come are put."""
        self._node = node
        self._reception = reception
        self._recipe = recipe
        self._limit = limit
        self._tls = tls
        self._pinned = pinned
        self._aside = aside
        self._access = access or AccessLists()
        self._timeouts = timeouts
        self._connections = connections
        self._shared_port = shared_port
        self._memory = memory
        self._log: logging.Logger = node.log
        self._open: set[Session] = set()  # until their streams are closed
        self._pings: PingRing[Session] = PingRing(timeouts.ping_every)
        self._pinging: asyncio.Task[None] | None = None

    def bind(self, address: Address) -> Address:
        """Take the port, which the system chooses where it is 0."""
        most = most_connections() if self._connections is None else self._connections
        options = server_options(self._timeouts, connections=most, shared_port=self._shared_port)
        self._server = grpc.aio.server(options=options)
        handler = grpc.stream_stream_rpc_method_handler(
            self._serve, request_deserializer=deserialize, response_serializer=serialize
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(str(address))
            else:
                self._credentials = self._tls.credentials()  # kept: gRPC calls back into it
                port = self._server.add_secure_port(str(address), self._credentials)
        except RuntimeError as error:
            raise ConfigError(bind_error(address)) from error
        return replace(address, port=port)

    async def open(self) -> None:
        """Devices can connect from now on."""
        await self._server.start()
        self._pinging = asyncio.create_task(self._ping_in_turn())

    async def close(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        # Without a grace, devices would report an error.
        await self._server.stop(grace=_GRACE)

    def enforce_access(self) -> None:
        """If the lists have changed: devices that may not be here any more are dropped."""
        if not self._access.refresh():
            return
        for session in list(self._open):
            refusal = self._access.refusal(session.device, session.certificate)
            if refusal is not None:
                self._log.warning("%s is dropped: %s", session.device, refusal)
                session.end(Refusal(grpc.StatusCode.PERMISSION_DENIED, refusal))
                self._node.closed(session, refusal)

    async def farewell(self) -> None:
        """Everything that waits is sent, every device's last records are taken."""
        self._reception.closing = True
        for session in list(self._open):
            session.outbox.close()
        waits = [session.finished.wait() for session in self._open]
        try:
            async with asyncio.timeout(self._timeouts.farewell):
                await asyncio.gather(*waits)
        except TimeoutError:
            late = ", ".join(sorted(session.device for session in self._open))
            self._log.warning("did not close their connections in time: %s", printable(late))
        # Who is getting ready, or hangs, has not read it, and would look for this server for ever.
        for session in list(self._open):
            session.end(_OVER)

    # ---- one stream --------------------------------------------------------------------------

    async def _serve(self, _: object, context: Context) -> None:
        try:
            session = await self._admit(context)
        except Refused as refused:
            peer = peer_address(context.peer())
            about = {"device": peer.rpartition(":")[0]}  # whoever it is: it may have lied
            over = refused.refusal.code is grpc.StatusCode.NOT_FOUND  # nothing is wrong with it
            level = logging.DEBUG if over else logging.WARNING
            self._log.log(level, "%s was refused: %s", peer, printable(str(refused)), extra=about)
            await context.abort(refused.refusal.code, refused.refusal.details)
            return
        self._open.add(session)
        tasks = [
            asyncio.create_task(self._read(session, context)),
            asyncio.create_task(self._write(session, context)),
        ]
        self._pings.add(session)
        why = ""
        try:
            ends: set[asyncio.Future[Any]] = {tasks[0], session.ended}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            why = _reason_of(tasks[0]) if tasks[0].done() else ""
        finally:
            self._pings.discard(session)
            self._node.closed(session, why)
            session.outbox.drop()
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # the device may hang up just now, which cancels this
                self._open.discard(session)
                session.finished.set()
        refusal = session.ended.result() if session.ended.done() else None
        if refusal is not None:
            await context.abort(refusal.code, refusal.details)

    async def _admit(self, context: Context) -> Session:
        try:
            async with asyncio.timeout(self._timeouts.handshake):
                frame = await context.read()
        except TimeoutError:
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "no introduction came") from None
        except ProtocolViolation as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        if frame is grpc.aio.EOF or frame.WhichOneof("kind") != "hello":
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "the first frame is a Hello")
        hello = frame.hello
        device = self._identify(hello, context)
        serial = peer_serial(context) if self._tls is not None else None
        self._refuse_unwanted(device, serial)
        peer = peer_address(context.peer())
        visitor = Visitor(device, hello.process, hello.last_session, peer)
        admitted = await self._reception.admit(visitor)
        session = Session(device, admitted.session, hello.process, peer)
        session.certificate = serial
        session.receive_with(
            limit=self._limit_of, pinned=self._pinned, later=self._aside, memory=self._memory
        )
        welcome = wire.Welcome(
            run=admitted.run,
            session=session.number,
            recipe=self._recipe,
            records=admitted.records,
            version=__version__,
            inline=INLINE_BYTES,
        )
        session.outbox.allow_inline(hello.inline)
        session.outbox.put_frame(wire.Frame(welcome=welcome))
        session.ping(self._node.clock())
        self._node.opened(session)
        if (refusal := self._access.refusal(device, serial)) is not None:
            self._node.closed(session, refusal)  # the lists have changed meanwhile
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, refusal)
        return session

    def _refuse_unwanted(self, device: NodeId, serial: int | None) -> None:
        if (refusal := self._access.refusal(device, serial)) is not None:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, refusal)

    def _identify(self, hello: wire.Hello, context: Context) -> NodeId:
        if (why := refusal(hello)) is not None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, why)
        name = hello.name
        try:
            check_device_name(name)
        except ConfigError as error:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, str(error)) from error
        if len(hello.process) > _NAME_LENGTH:  # kept as long as the session
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "the process has too long a name")
        if self._tls is not None:
            certified = peer_name(context)
            if certified != name:
                raise Refused(
                    grpc.StatusCode.PERMISSION_DENIED,
                    f"the certificate is that of {certified!r}, not of {name!r}: start the "
                    f"device with --name {certified}, or make one with: fedoptima certs device "
                    f"{name}",
                )
        return NodeId(name)

    def _limit_of(self, kind: type[Message]) -> int:
        return min(self._limit, self._node.limit(kind))

    async def _read(self, session: Session, context: Context) -> None:
        try:
            while (frame := await context.read()) is not grpc.aio.EOF:
                message = self._take(session, frame)
                if message is None:
                    continue
                filling = session.assembler.take_unfilled() if self._aside else None
                if filling is None:
                    self._node.receive(session, message)
                else:
                    checked = await self._node.prepare(message, filling.fill)
                    self._node.receive(session, message, checked)
        except ProtocolViolation as error:
            self._node.reject(session, error)

    def _take(self, session: Session, frame: Frame) -> Message | None:
        """The message that the frame completes, if it does."""
        if isinstance(frame, Chunk) or frame.HasField("head"):
            return session.take(frame)
        if session.outbox.unread > _MOST_UNREAD:
            raise ProtocolViolation("it does not read what it is answered")
        match frame.WhichOneof("kind"):
            case "pong":
                session.pong(frame.pong, self._node.clock())
            case "telemetry":
                telemetry = frame.telemetry
                records = self._node.take_records(session, telemetry.first, telemetry.lines)
                if records is not None:
                    session.acknowledge(records)
            case "probe":
                session.probed += len(frame.probe.data)
                if frame.probe.last:
                    ack = wire.ProbeAck(nbytes=session.probed)
                    session.outbox.put_frame(wire.Frame(probe_ack=ack))
            case kind:
                raise ProtocolViolation(f"a device does not send a {kind} frame")
        return None

    async def _write(self, session: Session, context: Context) -> None:
        async for frame in session.outbox.frames():
            await context.write(frame)

    async def _ping_in_turn(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(self._timeouts.ping_every / _PING_STEPS)
            now = time.monotonic()
            for session in self._pings.due(now - before):
                if problem := session.stalled(self._timeouts.stall):
                    self._node.reject(session, Unresponsive(problem))
                else:
                    session.ping(self._node.clock())
            before = now


def _reason_of(reading: asyncio.Task[None]) -> str:
    error = None if reading.cancelled() else reading.exception()
    return "" if error is None else f"{type(error).__name__}: {error}".strip(": ")
