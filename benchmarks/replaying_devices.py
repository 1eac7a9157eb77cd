"""Devices that compute nothing: each sends the same stored batch whenever it has a credit.

python -m benchmarks.replaying_devices SERVER CERTIFICATES BATCH COUNT FIRST [RATE]

Many of them share one process and one event loop. They speak the product's protocol, but their
chunks are turned into bytes only once, so that a server is measured and not they. With a RATE, all
of the process together send no more batches a second than that, and none before SIGUSR1.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
from safetensors.torch import load_file

from fedoptima.core.messages import ActivationBatch, Join
from fedoptima.core.types import PayloadId
from fedoptima.engine.payloads import pack
from fedoptima.runtime.security.certificates import authority_files, device_files
from fedoptima.runtime.security.tls import DeviceTLS
from fedoptima.runtime.timeouts import DEFAULT
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import PATH, client_options
from fedoptima.runtime.wire.codec import SCHEMA, encode
from fedoptima.runtime.wire.frames import Chunk, deserialize, serialize

_BURST = 1.0  # seconds: what was overslept is made up for
_AT_ONCE = 50  # handshakes: more would time out on a busy machine


def device_name(number: int) -> str:
    return f"device-{number}"


class Pace:
    """When the next batch may be sent, whosever it is."""

    def __init__(self, rate: float) -> None:
        self._pause = 1 / rate
        self._next = 0.0
        self._begun = asyncio.Event()

    def begin(self) -> None:
        self._next = time.monotonic()
        self._begun.set()

    async def wait(self) -> None:
        await self._begun.wait()
        now = time.monotonic()
        self._next = max(self._next + self._pause, now - _BURST)
        await asyncio.sleep(max(0.0, self._next - now))


class ReplayingDevice:
    def __init__(
        self, name: str, batch: ActivationBatch, chunks: list[bytes], pace: Pace | None = None
    ) -> None:
        self._name = name
        self._pace = pace
        self._batch = batch
        self._chunks = chunks  # the same for all
        self._seq = 0

    async def run(self, server: str, tls: DeviceTLS, arrivals: asyncio.Semaphore) -> None:
        """``arrivals``: of devices that connect at the same time."""
        self._credits = asyncio.Semaphore(0)
        async with grpc.aio.secure_channel(
            server, tls.credentials(), options=client_options(DEFAULT)
        ) as channel:
            call = channel.stream_stream(PATH, response_deserializer=deserialize)()
            async with arrivals:
                hello = wire.Hello(schema=SCHEMA, name=self._name, process=self._name)
                await call.write(serialize(wire.Frame(hello=hello)))
                self._inline = (await call.read()).welcome.inline
                samples = self._batch.data.value["labels"].numel()  # type: ignore[index]
                await call.write(serialize(encode(Join(0, samples, 1e9, 1e7)).head))
            sending = asyncio.create_task(self._send(call))
            try:
                await self._read(call)
            finally:
                sending.cancel()

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        while (frame := await call.read()) is not grpc.aio.EOF:
            if isinstance(frame, Chunk):
                continue  # of a model: nobody needs it here
            if frame.HasField("ping"):
                pong = wire.Pong(sent=frame.ping.sent, device_time=0.0)
                await call.write(serialize(wire.Frame(pong=pong)))
            elif frame.HasField("head"):
                match frame.head.WhichOneof("message"):
                    case "turn_on":
                        self._credits.release()
                    case "stop":
                        return

    async def _send(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            await self._credits.acquire()
            if self._pace is not None:
                await self._pace.wait()
            identity = PayloadId(f"{self._name}/0/{self._seq}")
            message = replace(
                self._batch, seq=self._seq, data=replace(self._batch.data, id=identity)
            )
            outgoing = encode(message, inline=self._inline)
            await call.write(serialize(outgoing.head))
            for chunk in self._chunks if outgoing.tensors else ():
                await call.write(chunk)
            self._seq += 1


async def main(
    server: str, certificates: Path, file: Path, count: int, first: int, rate: float = 0.0
) -> None:
    batch = ActivationBatch(0, pack(PayloadId("stored"), load_file(file)))
    chunks = [serialize(chunk) for chunk in encode(batch).chunks()]
    ca = authority_files(certificates).cert
    pace = Pace(rate) if rate else None
    if pace is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, pace.begin)
    arrivals = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        name = device_name(number)
        pair = device_files(certificates, name)
        device = ReplayingDevice(name, batch, chunks, pace)
        while True:
            with suppress(grpc.RpcError, asyncio.InvalidStateError):
                await device.run(server, DeviceTLS(ca, pair.cert, pair.key), arrivals)
                return
            if pace is None:
                return  # the server has ended
            await asyncio.sleep(random.uniform(1.0, 5.0))  # one of many: the machine is busy

    await asyncio.gather(*(one(first + index) for index in range(count)))


if __name__ == "__main__":
    address, folder, stored, devices, begin, *rates = sys.argv[1:]
    asyncio.run(
        main(address, Path(folder), Path(stored), int(devices), int(begin), *map(float, rates))
    )
