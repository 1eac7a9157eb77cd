"""The server's ends of all streams: who may come in, and what becomes of each frame."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import grpc

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import Message
from fedoptima.core.text import printable, quoted
from fedoptima.core.types import SERVER, NodeId
from fedoptima.runtime.address import peer_address
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.tls import ServerTLS, peer_name, peer_serial
from fedoptima.runtime.server.allowance import Allowance
from fedoptima.runtime.server.descriptors import most_connections
from fedoptima.runtime.server.server_node import ServerNode
from fedoptima.runtime.server.session import Refusal, Session
from fedoptima.runtime.timeouts import DEFAULT, Timeouts
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import METHOD, SERVICE, server_options
from fedoptima.runtime.wire.codec import SCHEMA
from fedoptima.runtime.wire.frames import Chunk, Frame, deserialize, serialize

_NAME_LENGTH = 100
_ARRIVALS_AT_ONCE, _ARRIVALS_PER_SECOND = 100, 1.0  # sessions of one device
_MOST_UNREAD = 100  # frames that answer a device: one that never reads must not fill the memory

# grpc comes without types; a context is what reads, writes and ends one stream.
Context = Any


class Refused(Exception):
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, text)


class ServerStreams:
    def __init__(
        self,
        node: ServerNode,
        recipe: str,
        *,
        limit: int,
        pinned: bool = False,
        aside: bool = False,
        access: AccessLists | None = None,
        timeouts: Timeouts = DEFAULT,
        connections: int | None = None,
    ) -> None:
        """``recipe``: what every device is sent. ``limit``: bytes of the largest message taken,
        whatever the plan allows. ``pinned``: tensors come into memory that a GPU can copy from.
        ``aside``: they are filled, checked and copied on a thread of their own, for a GPU that
        trains faster than one thread can do all of it. ``connections``: at most; None: as many as
        the system allows."""
        self._node = node
        self._recipe = recipe
        self._limit = limit
        self._pinned = pinned
        self._aside = aside
        self._access = access or AccessLists()
        self._timeouts = timeouts
        self._connections = connections
        self._log: logging.Logger = node.log
        self._open: set[Session] = set()  # until their streams are closed
        self._closing = False
        self._arrivals: dict[NodeId, Allowance] = {}

    def listen(self, address: str, tls: ServerTLS | None) -> tuple[Any, int]:
        """A server, to be started, and its port, which the system chooses where it is 0."""
        self._secure = tls is not None
        most = most_connections() if self._connections is None else self._connections
        server = grpc.aio.server(options=server_options(self._timeouts, connections=most))
        handler = grpc.stream_stream_rpc_method_handler(
            self._serve, request_deserializer=deserialize, response_serializer=serialize
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            self._credentials = tls.credentials()  # kept: gRPC calls back into it
            port = server.add_secure_port(address, self._credentials)
        return server, port

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
        self._closing = True
        for session in list(self._open):
            session.outbox.close()
        waits = [session.finished.wait() for session in self._open]
        try:
            async with asyncio.timeout(self._timeouts.farewell):
                await asyncio.gather(*waits)
        except TimeoutError:
            late = ", ".join(sorted(session.device for session in self._open))
            self._log.warning("did not close their connections in time: %s", printable(late))

    # ---- one stream --------------------------------------------------------------------------

    async def _serve(self, _: object, context: Context) -> None:
        try:
            session = await self._admit(context)
        except Refused as refused:
            peer = peer_address(context.peer())
            about = {"device": peer.rpartition(":")[0]}  # whoever it is: it may have lied
            self._log.warning("%s was refused: %s", peer, printable(str(refused)), extra=about)
            await context.abort(refused.refusal.code, refused.refusal.details)
            return
        self._open.add(session)
        tasks = [
            asyncio.create_task(self._read(session, context)),
            asyncio.create_task(self._write(session, context)),
            asyncio.create_task(self._ping(session)),
        ]
        why = ""
        try:
            ends: set[asyncio.Future[Any]] = {tasks[0], session.ended}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            why = _reason_of(tasks[0]) if tasks[0].done() else ""
        finally:
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
        serial = peer_serial(context) if self._secure else None
        self._refuse_unwanted(device, serial)
        self._refuse_too_often(device)
        await self._make_room(device, hello, context)
        self._refuse_unwanted(device, serial)  # the lists may have changed meanwhile
        self._refuse_at_the_end()
        session = Session(
            device,
            self._node.next_session(device, hello.last_session),
            hello,
            peer_address(context.peer()),
        )
        session.certificate = serial
        session.receive_with(limit=self._limit_of, pinned=self._pinned, later=self._aside)
        welcome = wire.Welcome(
            run=self._node.run,
            session=session.number,
            recipe=self._recipe,
            records=self._node.records.taken(device),
        )
        session.outbox.put_frame(wire.Frame(welcome=welcome))
        session.ping(self._node.clock())
        self._node.opened(session)
        return session

    def _refuse_unwanted(self, device: NodeId, serial: int | None) -> None:
        if (refusal := self._access.refusal(device, serial)) is not None:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, refusal)

    def _refuse_too_often(self, device: NodeId) -> None:
        """Each time it joins it is sent a model: that must not keep the server from the others."""
        arrivals = self._arrivals.setdefault(
            device, Allowance(per_second=_ARRIVALS_PER_SECOND, burst=_ARRIVALS_AT_ONCE)
        )
        if not arrivals.take(1, time.monotonic()):
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"{device} connects too often; come later")

    def _refuse_at_the_end(self) -> None:
        outcome = self._node.outcome
        if outcome.cancelled() or (outcome.done() and outcome.exception() is not None):
            # It may be resumed: the device is to come again.
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the server is breaking down")
        if self._closing or outcome.done():
            raise Refused(grpc.StatusCode.NOT_FOUND, "the run is over")

    def _identify(self, hello: wire.Hello, context: Context) -> NodeId:
        if hello.schema != SCHEMA:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this server speaks version {SCHEMA} of the protocol, {quoted(hello.name)} speaks "
                f"{hello.schema} (fedoptima {printable(hello.version, 20)}): install the same "
                "fedoptima on both",
            )
        name = hello.name
        if not name or len(name) > _NAME_LENGTH or name == SERVER or not _is_plain(name):
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"{name[:_NAME_LENGTH]!r} is no name")
        if len(hello.process) > _NAME_LENGTH:  # kept as long as the session
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "the process has too long a name")
        if self._secure:
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

    async def _make_room(self, device: NodeId, hello: wire.Hello, context: Context) -> None:
        """A connection that died unnoticed is replaced; one whose device answers is not."""
        while (old := self._node.sessions.get(device)) is not None:
            same_process = old.process == hello.process
            if not same_process and await old.answers(
                self._node.clock(), self._timeouts.ping_answer
            ):
                raise Refused(
                    grpc.StatusCode.ALREADY_EXISTS,
                    f"{device!r} is connected already, from {old.peer}, and answers: give this "
                    "device another name, or stop the other one",
                )
            self._log.info(
                "%s is back from %s: its old connection is given up",
                device,
                peer_address(context.peer()),
            )
            old.end()
            self._node.closed(old, "replaced")

    async def _read(self, session: Session, context: Context) -> None:
        try:
            while (frame := await context.read()) is not grpc.aio.EOF:
                message = self._take(session, frame)
                if message is None:
                    continue
                filling = session.assembler.take_unfilled()
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
                ack = wire.TelemetryAck(records=records)
                session.outbox.put_frame(wire.Frame(telemetry_ack=ack))
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

    async def _ping(self, session: Session) -> None:
        while True:
            await asyncio.sleep(self._timeouts.ping_every)
            if problem := session.stalled(self._timeouts.stall):
                self._node.reject(session, ProtocolViolation(problem))
                return
            session.ping(self._node.clock())


def _reason_of(reading: asyncio.Task[None]) -> str:
    error = None if reading.cancelled() else reading.exception()
    return "" if error is None else f"{type(error).__name__}: {error}".strip(": ")


def _is_plain(name: str) -> bool:
    return name.isascii() and all(letter.isalnum() or letter in "_.-" for letter in name)
