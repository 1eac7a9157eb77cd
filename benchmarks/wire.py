"""What the wire format costs: activation batches against bare bytes over the same gRPC and TLS.

Batches of 3 MiB (100 activations of VGG-5's first block, float32, and their labels) go from this
process to another one on this machine, as a device would send them: message, frames, gRPC with
certificates on both sides, message again, its tensors ready to be used. Against it the fastest
stream of bytes that gRPC's asyncio can carry without doing anything with them, over chunks of 64
KiB to 4 MiB. Both take the product's own channel settings. Times are of rounds in which every way
is taken in turn, so that a busy machine slows all of them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import torch

from fedoptima.core.messages import ActivationBatch
from fedoptima.core.types import PayloadId
from fedoptima.engine.payloads import pack
from fedoptima.runtime.security.certificates import authority_files, make_authority, make_device
from fedoptima.runtime.security.tls import DeviceTLS, ServerTLS
from fedoptima.runtime.timeouts import DEFAULT
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import PATH, SERVICE, client_options, server_options
from fedoptima.runtime.wire.codec import CHUNK_BYTES, Assembler
from fedoptima.runtime.wire.frames import deserialize, serialize
from fedoptima.runtime.wire.outbox import Outbox

BATCHES, ROUNDS = 32, 11
BARE_CHUNKS = [64 << 10, 256 << 10, 1 << 20, 4 << 20]
TENSORS = {"activations.0": torch.randn(100, 32, 16, 16), "labels": torch.arange(100)}
BATCH_BYTES = sum(tensor.nbytes for tensor in TENSORS.values())
BARE = f"/{SERVICE}/Bare"


# ---- the receiving process -----------------------------------------------------------------------


async def take_messages(_: object, context: grpc.aio.ServicerContext) -> None:
    """Answers with the bytes of the tensors that it could have trained on."""
    assembler = Assembler(limit=2 * BATCH_BYTES)
    ready = 0
    while (frame := await context.read()) is not grpc.aio.EOF:
        message = assembler.feed(frame)
        if isinstance(message, ActivationBatch):
            ready += message.data.nbytes
    await context.write(wire.Frame(probe_ack=wire.ProbeAck(nbytes=ready)))


async def take_bytes(_: object, context: grpc.aio.ServicerContext) -> None:
    received = 0
    while (data := await context.read()) is not grpc.aio.EOF:
        received += len(data)
    await context.write(received.to_bytes(8, "little"))


def receive(tls: ServerTLS, parent: Connection) -> None:
    async def serve() -> None:
        server = grpc.aio.server(options=server_options(DEFAULT))
        methods = {
            "Session": grpc.stream_stream_rpc_method_handler(take_messages, deserialize, serialize),
            "Bare": grpc.stream_stream_rpc_method_handler(take_bytes),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        parent.send(server.add_secure_port("127.0.0.1:0", tls.credentials()))
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())


# ---- the sending process -------------------------------------------------------------------------


async def send_messages(channel: grpc.aio.Channel) -> int:
    call = channel.stream_stream(PATH, serialize, deserialize)()
    outbox = Outbox()
    for number in range(BATCHES):
        outbox.put(ActivationBatch(number, pack(PayloadId(f"device/0/{number}"), TENSORS)))
    outbox.close()
    async for frame in outbox.frames():
        await call.write(frame)
    await call.done_writing()
    answer = await call.read()
    return int(answer.probe_ack.nbytes)


async def send_bytes(channel: grpc.aio.Channel, chunk: bytes) -> int:
    call = channel.stream_stream(BARE)()
    whole, rest = divmod(BATCHES * BATCH_BYTES, len(chunk))
    for _ in range(whole):
        await call.write(chunk)
    await call.write(chunk[:rest])
    await call.done_writing()
    return int.from_bytes(await call.read(), "little")


@asynccontextmanager
async def connection() -> AsyncIterator[grpc.aio.Channel]:
    """A channel with certificates on both sides to a process that receives."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, device = make_authority(folder), make_device(folder, "device")
        ca = authority_files(folder).cert
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(
            target=receive, args=(ServerTLS(ca, server.cert, server.key), there), daemon=True
        )
        process.start()
        try:
            there.close()  # if the process dies, reading the port fails instead of waiting
            credentials = DeviceTLS(ca, device.cert, device.key).credentials()
            async with grpc.aio.secure_channel(
                f"127.0.0.1:{here.recv()}", credentials, options=client_options(DEFAULT)
            ) as channel:
                yield channel
        finally:
            process.terminate()
            process.join()


async def timed(sending: Awaitable[int]) -> float:
    """Milliseconds a batch."""
    start = time.perf_counter()
    arrived = await sending
    seconds = time.perf_counter() - start
    if arrived != BATCHES * BATCH_BYTES:
        raise SystemExit(f"{arrived} bytes arrived of {BATCHES * BATCH_BYTES}")
    return 1000 * seconds / BATCHES


async def take_turns() -> tuple[list[float], dict[int, list[float]]]:
    chunks = {size: bytes(size) for size in BARE_CHUNKS}
    messages: list[float] = []
    bare: dict[int, list[float]] = {size: [] for size in chunks}
    async with connection() as channel:
        for _ in range(1 + ROUNDS):  # the first warms up
            messages.append(await timed(send_messages(channel)))
            for size, chunk in chunks.items():
                bare[size].append(await timed(send_bytes(channel, chunk)))
    return messages[1:], {size: times[1:] for size, times in bare.items()}


def measure() -> dict[str, object]:
    messages, bare = asyncio.run(take_turns())
    fastest = min(bare, key=lambda size: statistics.median(bare[size]))
    ratios = [best / ours for ours, best in zip(messages, bare[fastest], strict=True)]
    milliseconds = statistics.median(messages)
    return {
        "what": "activation batches of 3 MiB ready as tensors, against bare bytes, both with TLS",
        "ratio": statistics.median(ratios),
        "at least": 0.5,
        "ratios": ratios,
        "milliseconds a batch": milliseconds,
        "MB/s": BATCH_BYTES / 1000 / milliseconds,
        "chunk KiB": CHUNK_BYTES >> 10,
        "bare milliseconds by chunk KiB": {
            str(size >> 10): statistics.median(times) for size, times in bare.items()
        },
        "bare MB/s": BATCH_BYTES / 1000 / statistics.median(bare[fastest]),
    }


if __name__ == "__main__":
    for key, value in measure().items():
        print(f"{key}: {value}")
