"""A server process with nothing behind its door: it answers with the name of whoever gets in.

Run as ``python -m tests.runtime.security.doorway CERTS``: its port is the first line on stdout.
`Doorway` starts it and reads its stderr, `knock` is a device at its door.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedoptima.runtime.security.tls import Call, ServerTLS, peer_name
from tests.runtime.folders import server_of

if TYPE_CHECKING:  # fedoptima.runtime must be imported before it, to switch its log off
    import grpc

DEADLINE = 120.0  # seconds, for what takes milliseconds
_VERBOSITY = "GRPC_VERBOSITY"


class Doorway:
    def __init__(self, certs: Path, verbosity: str | None = None) -> None:
        own = {} if verbosity is None else {_VERBOSITY: verbosity}
        others = {name: value for name, value in os.environ.items() if name != _VERBOSITY}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.security.doorway", str(certs)],
            cwd=Path(__file__).parents[3],
            env=others | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> str:
        """What it said on stderr: nothing but gRPC's own log."""
        self._process.kill()
        return self._process.communicate(timeout=DEADLINE)[1]


async def knock(port: int, credentials: grpc.ChannelCredentials | None) -> str:
    """The name under which this side got in; raises grpc.RpcError if it did not."""
    import grpc

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
    import grpc

    server = grpc.aio.server()
    handlers = {"knock": grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("doorway", handlers),))
    port = server.add_secure_port("127.0.0.1:0", tls.credentials())
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(server_of(Path(sys.argv[1]))))
