"""One connection of a device to its server: a stream, and what is read from it and written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import Failed, Message
from fedoptima.preprocess.probe import Probing
from fedoptima.runtime.device.device_node import DeviceNode
from fedoptima.runtime.timeouts import Timeouts
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import CHUNK_BYTES, Assembler
from fedoptima.runtime.wire.frames import Chunk, Frame, frame_bytes
from fedoptima.runtime.wire.outbox import LinkPace, LinkUse, Outbox

Call = Any  # grpc comes without types

_GONE = (TimeoutError, grpc.RpcError, asyncio.InvalidStateError)  # the other end, or its interest


class ConnectionLost(Exception):
    """The stream is over; the device tries again."""


class DeviceLink:
    def __init__(
        self,
        call: Call,
        *,
        limit: int,
        clock: Callable[[], float],
        timeouts: Timeouts,
        up: LinkPace | None = None,
        down: LinkPace | None = None,
    ) -> None:
        self.number = 0  # of the session; the server gives it
        self.node: DeviceNode | None = None  # once there is one for this run
        self._call = call
        self._clock = clock
        self._timeouts = timeouts
        self._down = down
        self._use = LinkUse()
        self._outbox = Outbox(up, self._use)
        self._assembler = Assembler(limit=limit)
        self._pinged = asyncio.Event()
        self._acknowledged: asyncio.Queue[int] = asyncio.Queue()
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._write())]

    # ---- the introduction --------------------------------------------------------------------

    async def introduce(self, hello: wire.Hello, patience: float) -> wire.Welcome:
        """``patience``: seconds."""
        self._outbox.put_frame(wire.Frame(hello=hello))
        try:
            async with asyncio.timeout(patience):
                frame = await self._call.read()
        except TimeoutError:
            raise ConnectionLost("the server did not answer") from None
        if frame is grpc.aio.EOF:
            raise ConnectionLost("the server closed the connection")
        if frame is None or frame.WhichOneof("kind") != "welcome":
            raise ConnectionLost("what answers there is not a fedoptima server")
        welcome: wire.Welcome = frame.welcome
        self.number = welcome.session
        self._outbox.allow_inline(welcome.inline)
        self._reading = asyncio.create_task(self._read())
        self._tasks += [self._reading, asyncio.create_task(self._hand_records_over())]
        return welcome

    async def measure_uplink(self) -> float:
        """Bytes per second, from a few transfers of growing size."""
        probing = Probing()
        while (nbytes := probing.next_size()) is not None:
            began = time.monotonic()
            for frame in _probe_frames(nbytes):
                self._outbox.put_frame(frame)
            await self._or_lost(self._acknowledged.get())
            probing.took(nbytes, time.monotonic() - began)
        return probing.bytes_per_second()

    async def _or_lost(self, waiting: Any) -> None:
        task = asyncio.ensure_future(waiting)
        await asyncio.wait({task, self._reading}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            self._reading.result()  # raises what ended it: the run may be over
            raise ConnectionLost("the connection was lost while the uplink was measured")

    # ---- the node's view ---------------------------------------------------------------------

    def send(self, message: Message) -> None:
        self._outbox.put(message)

    def carries(self) -> float:
        """Bytes per second of the uplink since this was asked last; 0: it was hardly in use."""
        return self._use.rate()

    def end(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    # ---- until the end -----------------------------------------------------------------------

    async def last(self, node: DeviceNode) -> None:
        """Work until the node has come to its end (returns) or the stream has (raises)."""
        waits: set[asyncio.Future[Any]] = {node.outcome, self._reading, self._ended}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if node.outcome.done():
            await self._leave(node)
            return
        if self._ended.done():
            raise ConnectionLost(self._ended.result())
        self._reading.result()  # raises what ended it
        raise ConnectionLost("the server closed the connection")

    async def _leave(self, node: DeviceNode) -> None:
        """The last word and the last records go through before the stream is closed."""
        try:
            async with asyncio.timeout(self._timeouts.farewell):
                await self._pinged.wait()  # see _hand_records_over
                while (frame := node.telemetry.batch(last=True)) is not None:
                    self._outbox.put_frame(frame)
                    node.telemetry.acknowledged(frame.telemetry.first + len(frame.telemetry.lines))
                await self._hang_up()
        except _GONE:
            pass

    async def give_up(self, reason: str) -> None:
        """Tell the server why this device cannot take part; it would only see it come and go."""
        self._outbox.put(Failed(reason))
        try:
            async with asyncio.timeout(self._timeouts.farewell):
                await self._hang_up()
        except _GONE:
            pass

    async def _hang_up(self) -> None:
        self._outbox.close()
        await self._tasks[0]
        await self._call.done_writing()
        await asyncio.wait({self._reading})

    async def close(self) -> None:
        self._outbox.drop()
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- frames ------------------------------------------------------------------------------

    async def _write(self) -> None:
        async for frame in self._outbox.frames():
            await self._call.write(frame)

    async def _read(self) -> None:
        while (frame := await self._call.read()) is not grpc.aio.EOF:
            if frame is None:  # gRPC's word for one that could not be deserialized
                raise ConnectionLost("the server sent a frame that cannot be read")
            if self._down is not None:
                await asyncio.sleep(self._down.delay(frame_bytes(frame)))
            try:
                self._take(frame)
            except ProtocolViolation as error:
                if self.node is not None:
                    self.node.reject(self, error)
                raise ConnectionLost(f"the server broke the protocol: {error}") from error

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Chunk) or frame.HasField("head"):
            message = self._assembler.feed(frame)
            if message is not None and self.node is not None:
                self.node.receive(self, message)
            return
        match frame.WhichOneof("kind"):
            case "ping":
                pong = wire.Pong(sent=frame.ping.sent, device_time=self._clock())
                self._outbox.put_frame(wire.Frame(pong=pong))
                self._pinged.set()
            case "probe_ack":
                self._acknowledged.put_nowait(frame.probe_ack.nbytes)
            case "telemetry_ack":
                if self.node is not None:
                    self.node.telemetry.acknowledged(frame.telemetry_ack.records)
            case kind:
                raise ProtocolViolation(f"a server does not send a {kind} frame")

    async def _hand_records_over(self) -> None:
        await self._pinged.wait()  # until then the server cannot read this device's clock
        while True:
            await asyncio.sleep(self._timeouts.telemetry_every)
            frame = self.node.telemetry.batch() if self.node is not None else None
            if frame is not None:
                self._outbox.put_frame(frame)


def _probe_frames(nbytes: int) -> Iterator[wire.Frame]:
    piece = bytes(min(nbytes, CHUNK_BYTES))
    for start in range(0, nbytes, len(piece)):
        end = min(start + len(piece), nbytes)
        probe = wire.Probe(data=piece[: end - start], last=end == nbytes)
        yield wire.Frame(probe=probe)
