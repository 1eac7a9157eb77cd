"""How fast gRPC's asyncio takes in bytes when nothing is done with them: a floor for a server.

The same number of processes and connections as feed the server, its channel settings, its size of
a frame, certificates on both sides.

python -m benchmarks.bare_stream SERVER CERTIFICATES COUNT FIRST     the side that sends
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import grpc

from benchmarks.replaying_devices import device_name
from fedoptima.runtime.security.certificates import authority_files, device_files
from fedoptima.runtime.security.tls import DeviceTLS, ServerTLS
from fedoptima.runtime.timeouts import DEFAULT
from fedoptima.runtime.wire.channel import SERVICE, client_options, server_options
from fedoptima.runtime.wire.codec import CHUNK_BYTES

BARE = "Bare"


async def received(tls: ServerTLS, folder: Path, counts: Sequence[int], seconds: float) -> float:
    """Bytes a second, once all devices have sent something."""
    arrived = 0
    senders = set[int]()
    everyone = asyncio.Event()

    async def take(_: object, context: grpc.aio.ServicerContext) -> None:
        nonlocal arrived
        while (data := await context.read()) is not grpc.aio.EOF:
            arrived += len(data)
            if not everyone.is_set():
                senders.add(id(context))
                if len(senders) == sum(counts):
                    everyone.set()

    server = grpc.aio.server(options=server_options(DEFAULT))
    methods = {BARE: grpc.stream_stream_rpc_method_handler(take)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    credentials = tls.credentials()
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    processes, first = [], 0
    for count in counts:
        arguments = [f"127.0.0.1:{port}", str(folder), str(count), str(first)]
        processes.append(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.bare_stream", *arguments
            )
        )
        first += count
    try:
        async with asyncio.timeout(60):
            await everyone.wait()
        await asyncio.sleep(seconds / 4)
        before, start = arrived, time.perf_counter()
        await asyncio.sleep(seconds)
        return (arrived - before) / (time.perf_counter() - start)
    finally:
        for process in processes:
            process.kill()
        await asyncio.gather(*(process.wait() for process in processes))
        await server.stop(None)


async def send(server: str, certificates: Path, count: int, first: int) -> None:
    chunk = bytes(CHUNK_BYTES)
    ca = authority_files(certificates).cert

    async def one(number: int) -> None:
        pair = device_files(certificates, device_name(number))
        credentials = DeviceTLS(ca, pair.cert, pair.key).credentials()
        async with grpc.aio.secure_channel(
            server, credentials, options=client_options(DEFAULT)
        ) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{BARE}")()
            while True:
                await call.write(chunk)

    await asyncio.gather(*(one(first + index) for index in range(count)))


if __name__ == "__main__":
    address, folder, devices, begin = sys.argv[1:]
    asyncio.run(send(address, Path(folder), int(devices), int(begin)))
