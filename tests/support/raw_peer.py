"""A peer that speaks the protocol by hand, well or badly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from queue import Queue

import grpc

from fedoptima.core.messages import Message
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.tls import DeviceTLS
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import PATH
from fedoptima.runtime.wire.codec import SCHEMA, Assembler, encode
from fedoptima.runtime.wire.frames import Chunk, Frame, deserialize, serialize

DEADLINE = 180.0  # seconds, for what takes milliseconds


_PROCESSES = count()


def hello(name: str, **said: object) -> wire.Frame:
    process = f"process {next(_PROCESSES)} of {name}"
    usual = {"schema": SCHEMA, "name": name, "process": process, "version": "0"}
    return wire.Frame(hello=wire.Hello(**(usual | said)))


class RawPeer:
    def __init__(
        self,
        server: Address,
        options: Sequence[tuple[str, int]] = (),
        *,
        tls: DeviceTLS | None = None,
        deadline: float = DEADLINE,
    ) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), *options]
        if tls is None:
            self._channel = grpc.insecure_channel(str(server), options=options)
        else:
            self._channel = grpc.secure_channel(str(server), tls.credentials(), options=options)
        self._outgoing: Queue[bytes | None] = Queue()
        stream = self._channel.stream_stream(
            PATH, request_serializer=None, response_deserializer=None
        )
        self._call = stream(iter(self._outgoing.get, None), timeout=deadline)
        self._assembler = Assembler(limit=1 << 30)

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()

    # ---- to the server -----------------------------------------------------------------------

    def send(self, *frames: Frame | bytes) -> None:
        for frame in frames:
            self._outgoing.put(frame if isinstance(frame, bytes) else serialize(frame))

    def say(self, message: Message) -> None:
        outgoing = encode(message)
        self.send(outgoing.head, *outgoing.chunks())

    def hang_up(self) -> None:
        self._outgoing.put(None)

    # ---- from the server ---------------------------------------------------------------------

    def frames(self) -> Iterator[Frame]:
        for data in self._call:
            yield deserialize(data)

    def hear(self, kind: str) -> wire.Frame:
        """The next frame of this kind; others are passed over, pings are answered."""
        for frame in self.frames():
            if not isinstance(frame, Chunk):
                if frame.WhichOneof("kind") == "ping":
                    self.send(wire.Frame(pong=wire.Pong(sent=frame.ping.sent, device_time=1.0)))
                if frame.WhichOneof("kind") == kind:
                    return frame
        raise AssertionError(f"the stream ended without a {kind}")

    def messages(self) -> Iterator[Message]:
        """The core's messages; pings are answered."""
        for frame in self.frames():
            if isinstance(frame, Chunk) or frame.HasField("head"):
                message = self._assembler.feed(frame)
                if message is not None:
                    yield message
            elif frame.WhichOneof("kind") == "ping":
                self.send(wire.Frame(pong=wire.Pong(sent=frame.ping.sent, device_time=1.0)))

    def wait_for(self, *kinds: type[Message]) -> list[Message]:
        """Until one of each kind has come; what came, in order."""
        heard: list[Message] = []
        for message in self.messages():
            heard.append(message)
            if all(any(isinstance(found, kind) for found in heard) for kind in kinds):
                return heard
        raise AssertionError(f"the stream ended after {heard}")

    def ending(self) -> tuple[grpc.StatusCode, str]:
        """How the server ended the stream. Everything that still comes is read."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            return error.code(), error.details()
        return self._call.code(), self._call.details()
