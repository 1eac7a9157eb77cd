"""A device whose server is started wrongly for a while: with TLS, without, for another CA."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedoptima.runtime.address import Address
from fedoptima.runtime.device.client import Device, Pace, Refused, Workplace
from fedoptima.runtime.device.state import StateFile
from fedoptima.runtime.security.certificates import make_authority, make_device
from fedoptima.runtime.security.tls import DeviceTLS
from fedoptima.runtime.wire.channel import METHOD, SERVICE
from fedoptima.runtime.wire.frames import deserialize
from tests.runtime.device.test_client import PATIENT, Engine, over, welcome
from tests.runtime.folders import bundle, device_of, server_of
from tests.support.processes import free_port

TRIES = 3


async def listening(certs: Path | None, port: int, answer: Any) -> grpc.aio.Server:
    async def handle(_: object, context: Any) -> None:
        await answer(context)

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler = grpc.stream_stream_rpc_method_handler(handle, deserialize)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
    )
    address = f"127.0.0.1:{port}"
    if certs is None:
        server.add_insecure_port(address)
    else:
        server.add_secure_port(address, server_of(certs).credentials())
    await server.start()
    return server


class Ear(logging.Handler):
    """Hears when the device is let in, and when it has tried often enough after that."""

    def __init__(self) -> None:
        super().__init__()
        self.let_in, self.enough = asyncio.Event(), asyncio.Event()
        self.tries: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "connected to" in record.getMessage():
            self.let_in.set()
        if "trying again" in record.getMessage():
            self.tries.append(record.getMessage())
        if len(self.tries) >= TRIES:
            self.enough.set()


async def stay(context: Any) -> None:
    await welcome(context)
    await context.read()


async def outlasts(
    folder: Path, right: Path | None, wrong: Path | None, *, tls: DeviceTLS | None, stays: bool
) -> list[str]:
    """It is let in, then meets another server in the same place, then the right one again.

    Gives what it said while it tried. ``right``, ``wrong``: their certificates; None: no TLS.
    """
    log, ear, port = logging.Logger("device"), Ear(), free_port()
    log.addHandler(ear)
    server = await listening(right, port, stay)
    device = Device(
        "pi-1",
        Address("127.0.0.1", port),
        tls=tls,
        build=lambda _: Workplace(Engine(target=1.0), 8, 1, lambda: 1.0),
        state=StateFile(folder / "pi.json"),
        pace=Pace(up=1e9),
        stays=stays,
        timeouts=PATIENT,
        log=log,
    )
    life = asyncio.create_task(device.run())
    try:
        async with asyncio.timeout(120):
            await ear.let_in.wait()
            await server.stop(grace=None)
            server = await listening(wrong, port, over)
            enough = asyncio.create_task(ear.enough.wait())
            await asyncio.wait([life, enough], return_when=asyncio.FIRST_COMPLETED)
            enough.cancel()
            if life.done():
                await life  # raises
            await server.stop(grace=None)
            server = await listening(right, port, over)
            assert (await life).reason == "the run is over"
            return ear.tries
    finally:
        life.cancel()
        await server.stop(grace=None)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_authority(tmp_path / "ours", ["127.0.0.1"])
    make_device(tmp_path / "ours", "pi-1")
    return tmp_path / "ours"


def test_a_device_that_was_let_in_outlasts_a_server_that_hangs_up(
    certs: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    make_authority(theirs, ["127.0.0.1"])
    # It does not know the device's CA: for the device the same as one that has no time.
    tls = device_of(certs, ca=bundle(certs, theirs))
    asyncio.run(outlasts(tmp_path, certs, theirs, tls=tls, stays=False))


def test_a_device_that_stays_waits_until_its_server_speaks_tls_again(
    certs: Path, tmp_path: Path
) -> None:
    tls = device_of(certs)
    said = asyncio.run(outlasts(tmp_path, certs, None, tls=tls, stays=True))
    assert "does not speak TLS: start that server with --tls-ca" in " ".join(said)
    with pytest.raises(Refused, match="does not speak TLS"):
        asyncio.run(outlasts(tmp_path, certs, None, tls=tls, stays=False))


def test_a_device_without_certificates_that_stays_waits_until_none_are_asked_for(
    certs: Path, tmp_path: Path
) -> None:
    said = asyncio.run(outlasts(tmp_path, None, certs, tls=None, stays=True))
    assert "accepts only devices with a certificate, and this one has none" in " ".join(said)
    with pytest.raises(Refused, match="accepts only devices with a certificate"):
        asyncio.run(outlasts(tmp_path, None, certs, tls=None, stays=False))


def test_a_device_that_stays_ends_if_its_server_has_never_let_it_in(
    certs: Path, tmp_path: Path
) -> None:
    """Then it may be the device that was started wrongly."""

    async def story() -> None:
        port = free_port()
        server = await listening(None, port, over)
        device = Device(
            "pi-1",
            Address("127.0.0.1", port),
            tls=device_of(certs),
            build=lambda _: Workplace(Engine(target=1.0), 8, 1, lambda: 1.0),
            state=StateFile(tmp_path / "pi.json"),
            stays=True,
            timeouts=PATIENT,
        )
        try:
            await device.run()
        finally:
            await server.stop(grace=None)

    with pytest.raises(Refused, match="does not speak TLS"):
        asyncio.run(story())
