"""A device with a certificate, and a server that hangs up during the handshake for a while."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc

from fedoptima.runtime.address import Address
from fedoptima.runtime.device.client import Device, Pace, Workplace
from fedoptima.runtime.device.state import StateFile
from fedoptima.runtime.security.certificates import make_authority, make_device
from fedoptima.runtime.wire.channel import METHOD, SERVICE
from fedoptima.runtime.wire.frames import deserialize
from tests.runtime.device.test_client import PATIENT, Engine, over, welcome
from tests.runtime.folders import bundle, device_of, server_of
from tests.support.processes import free_port

TRIES = 3


async def listening(certs: Path, port: int, answer: Any) -> grpc.aio.Server:
    async def handle(_: object, context: Any) -> None:
        await answer(context)

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler = grpc.stream_stream_rpc_method_handler(handle, deserialize)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
    )
    server.add_secure_port(f"127.0.0.1:{port}", server_of(certs).credentials())
    await server.start()
    return server


class Ear(logging.Handler):
    """Hears when the device is let in, and when it has tried often enough after that."""

    def __init__(self) -> None:
        super().__init__()
        self.let_in, self.enough = asyncio.Event(), asyncio.Event()
        self._tries = 0

    def emit(self, record: logging.LogRecord) -> None:
        if "connected to" in record.getMessage():
            self.let_in.set()
        self._tries += "trying again" in record.getMessage()
        if self._tries >= TRIES:
            self.enough.set()


def test_a_device_that_was_let_in_outlasts_a_server_that_hangs_up(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        make_authority(folder, ["127.0.0.1"])
    make_device(ours, "pi-1")
    log, ear = logging.Logger("device"), Ear()
    log.addHandler(ear)

    async def stay(context: Any) -> None:
        await welcome(context)
        await context.read()

    async def story() -> str:
        port = free_port()
        server = await listening(ours, port, stay)
        device = Device(
            "pi-1",
            Address("127.0.0.1", port),
            tls=device_of(ours, ca=bundle(ours, theirs)),
            build=lambda _: Workplace(Engine(target=1.0), 8, 1, lambda: 1.0),
            state=StateFile(tmp_path / "pi.json"),
            pace=Pace(up=1e9),
            timeouts=PATIENT,
            log=log,
        )
        life = asyncio.create_task(device.run())
        async with asyncio.timeout(120):
            await ear.let_in.wait()
            await server.stop(grace=None)
            # It does not know the device's CA: for the device the same as one that has no time.
            server = await listening(theirs, port, over)
            enough = asyncio.create_task(ear.enough.wait())
            await asyncio.wait([life, enough], return_when=asyncio.FIRST_COMPLETED)
            enough.cancel()
            assert not life.done(), life.exception()
            await server.stop(grace=None)
            server = await listening(ours, port, over)
            try:
                return (await life).reason
            finally:
                await server.stop(grace=None)

    assert asyncio.run(story()) == "the run is over"
