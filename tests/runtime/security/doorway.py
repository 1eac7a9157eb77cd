"""A server process with nothing behind its door: it answers with the name of whoever gets in.

Run as ``python -m tests.runtime.security.doorway CERTS``: its port is the first line on stdout, its
log is on stderr. `Doorway` starts it and reads its log, `knock` is a device at its door.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import grpc

from fedoptima.runtime.security.handshake_log import refusals_logged
from fedoptima.runtime.security.tls import Call, ServerTLS, peer_name
from tests.runtime.folders import server_of

DEADLINE = 20.0  # seconds, for what takes milliseconds


class Doorway:
    def __init__(self, certs: Path) -> None:
        hiding = "GRPC_VERBOSITY"  # would hide what the log is about
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.security.doorway", str(certs)],
            cwd=Path(__file__).parents[3],
            env={name: value for name, value in os.environ.items() if name != hiding},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self._lines: Queue[str] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.put(line.strip())

    def logged(self, words: str) -> str:
        """Wait for the next line of the log with these words."""
        seen: list[str] = []
        end = time.monotonic() + DEADLINE
        try:
            while not seen or words not in seen[-1]:
                seen.append(self._lines.get(timeout=max(0.0, end - time.monotonic())))
        except Empty:
            raise AssertionError(f"{words!r} is not in the log: {seen}") from None
        return seen[-1]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(DEADLINE)  # ends when the filter of its stderr has ended as well
        assert not self._reader.is_alive()


async def knock(port: int, credentials: grpc.ChannelCredentials | None) -> str:
    """The name under which this side got in; raises grpc.RpcError if it did not."""
    target = f"127.0.0.1:{port}"
    options = [("grpc.use_local_subchannel_pool", 1)]  # no connection of a test before
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, options)
    else:
        channel = grpc.aio.secure_channel(target, credentials, options)
    async with channel:
        answer: bytes = await channel.stream_stream("/doorway/knock")(timeout=DEADLINE).read()
        return answer.decode()


async def answer(_: object, context: Call) -> AsyncIterator[bytes]:
    yield (peer_name(context) or "nobody").encode()


async def serve(tls: ServerTLS) -> None:
    server = grpc.aio.server()
    handlers = {"knock": grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("doorway", handlers),))
    port = server.add_secure_port("127.0.0.1:0", tls.credentials())
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
    with refusals_logged():
        asyncio.run(serve(server_of(Path(sys.argv[1]))))
