"""Devices that compute nothing: each sends the same stored batch whenever it has a credit.

python -m benchmarks.replaying_devices SERVER CERTIFICATES BATCH COUNT FIRST

Many of them share one process and one event loop. They speak the product's protocol, but their
chunks are turned into bytes only once, so that a server is measured and not they.
"""

from __future__ import annotations

import asyncio
import sys
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


def device_name(number: int) -> str:
    return f"device-{number}"


class ReplayingDevice:
    def __init__(self, name: str, batch: ActivationBatch, chunks: list[bytes]) -> None:
        self._name = name
        self._batch = batch
        self._chunks = chunks  # the same for all
        self._credits = asyncio.Semaphore(0)

    async def run(self, server: str, tls: DeviceTLS) -> None:
        async with grpc.aio.secure_channel(
            server, tls.credentials(), options=client_options(DEFAULT)
        ) as channel:
            call = channel.stream_stream(PATH, response_deserializer=deserialize)()
            hello = wire.Hello(schema=SCHEMA, name=self._name, process=self._name)
            await call.write(serialize(wire.Frame(hello=hello)))
            await call.read()  # the welcome
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
        seq = 0
        while True:
            await self._credits.acquire()
            identity = PayloadId(f"{self._name}/0/{seq}")
            message = replace(self._batch, seq=seq, data=replace(self._batch.data, id=identity))
            await call.write(serialize(encode(message).head))
            for chunk in self._chunks:
                await call.write(chunk)
            seq += 1


async def main(server: str, certificates: Path, file: Path, count: int, first: int) -> None:
    batch = ActivationBatch(0, pack(PayloadId("stored"), load_file(file)))
    chunks = [serialize(chunk) for chunk in encode(batch).chunks()]
    ca = authority_files(certificates).cert

    async def one(number: int) -> None:
        name = device_name(number)
        pair = device_files(certificates, name)
        device = ReplayingDevice(name, batch, chunks)
        try:
            await device.run(server, DeviceTLS(ca, pair.cert, pair.key))
        except grpc.RpcError:
            return  # the server has ended

    await asyncio.gather(*(one(first + index) for index in range(count)))


if __name__ == "__main__":
    address, folder, stored, devices, begin = sys.argv[1:]
    asyncio.run(main(address, Path(folder), Path(stored), int(devices), int(begin)))
