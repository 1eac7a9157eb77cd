"""A device and servers that are not what they should be, in one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedoptima.core.messages import Message
from fedoptima.runtime.address import Address
from fedoptima.runtime.device.client import Device, Pace, Refused, Unreachable, Workplace
from fedoptima.runtime.device.state import StateFile
from fedoptima.runtime.timeouts import Timeouts
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import METHOD, SERVICE
from fedoptima.runtime.wire.frames import deserialize
from fedoptima.testing.toy import ToyDevice
from tests.support.processes import free_port

PATIENT = Timeouts(
    handshake=60.0, retry_first=0.05, retry_longest=0.8, telemetry_every=0.1, farewell=1.0
)
HASTY = replace(PATIENT, handshake=1.0)  # for a server that never answers
WELCOME = wire.Frame(welcome=wire.Welcome(run="r", session=1, recipe="{}"))

Answer = Callable[[Any], Awaitable[None]]  # what a server does with a stream


class Engine(ToyDevice):
    def admit(self, message: Message) -> None:
        pass

    def receive(self, message: Message) -> Message:
        return message


def live(tmp_path: Path, answer: Answer, timeouts: Timeouts = PATIENT) -> str:
    """A device's life with a server that answers like this; says why it ended."""

    async def handle(_: object, context: Any) -> None:
        await answer(context)

    async def story() -> str:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(handle, deserialize)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        device = Device(
            "pi",
            Address("127.0.0.1", port),
            tls=None,
            build=lambda _: Workplace(Engine(target=1.0), 8, 1, lambda: 1.0),
            state=StateFile(tmp_path / "pi.json"),
            pace=Pace(up=1e9),
            timeouts=timeouts,
        )
        try:
            async with asyncio.timeout(120):
                return (await device.run()).reason
        finally:
            await server.stop(grace=None)

    return asyncio.run(story())


async def welcome(context: Any) -> None:
    await context.read()
    await context.write(WELCOME.SerializeToString())


async def over(context: Any) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "the run is over")


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
    ],
)
def test_a_device_that_is_not_wanted_ends_and_says_why(
    tmp_path: Path, code: grpc.StatusCode
) -> None:
    async def answer(context: Any) -> None:
        await context.abort(code, "not you")

    with pytest.raises(Refused, match="refused this device: not you"):
        live(tmp_path, answer)


EVIL = "\x1b[2J\n12:00:00 connected to elsewhere\r" + "x" * 3000


def test_what_a_server_says_is_shown_without_control_characters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(context: Any) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, EVIL)

    with pytest.raises(Refused) as refused:
        live(tmp_path, refuse)
    assert str(refused.value).isprintable()
    attempts = 0

    async def lose(context: Any) -> None:
        nonlocal attempts
        attempts += 1
        code = grpc.StatusCode.UNAVAILABLE if attempts == 1 else grpc.StatusCode.NOT_FOUND
        await context.abort(code, EVIL)

    assert live(tmp_path, lose).isprintable()
    assert [m for m in caplog.messages if "trying again" in m]
    assert all(message.isprintable() and len(message) < 2000 for message in caplog.messages)


async def garbage(context: Any) -> None:
    await context.read()
    await context.write(b"\xff\xff garbage")
    await context.read()


async def garbage_later(context: Any) -> None:
    await welcome(context)
    await context.write(b"\xff\xff garbage")
    await context.read()


async def another_protocol(context: Any) -> None:
    await context.read()
    await context.write(wire.Frame(ping=wire.Ping(sent=1.0)).SerializeToString())
    await context.read()


async def silence(context: Any) -> None:
    await context.read()
    await context.read()


async def a_devices_words(context: Any) -> None:
    await welcome(context)
    await context.write(wire.Frame(hello=wire.Hello(name="me too")).SerializeToString())
    await context.read()


@pytest.mark.parametrize(
    ("nonsense", "reason"),
    [
        (garbage, "not a fedoptima server"),
        (another_protocol, "not a fedoptima server"),
        (silence, "did not answer"),
        (garbage_later, "a frame that cannot be read"),
        (a_devices_words, "does not send a hello frame"),
    ],
)
def test_a_server_that_talks_nonsense_is_tried_again_and_the_log_says_why(
    tmp_path: Path, nonsense: Answer, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fedoptima.device")
    answers = iter([nonsense, over])

    async def answer(context: Any) -> None:
        await next(answers, over)(context)

    timeouts = HASTY if nonsense is silence else PATIENT
    assert live(tmp_path, answer, timeouts) == "the run is over"
    assert reason in " ".join(caplog.messages)


def impatient(tmp_path: Path, port: int) -> Device:
    return Device(
        "pi",
        Address("127.0.0.1", port),
        tls=None,
        build=lambda _: Workplace(Engine(target=1.0), 8, 1, lambda: 1.0),
        state=StateFile(tmp_path / "pi.json"),
        give_up_after=0.0,
        timeouts=PATIENT,
    )


@pytest.mark.parametrize("words", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH\r\n"])
def test_a_port_of_another_protocol_is_called_that(tmp_path: Path, words: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        await reader.read()  # until the other end hangs up
        writer.close()

    async def story() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1") as server:
            await impatient(tmp_path, server.sockets[0].getsockname()[1]).run()

    with pytest.raises(Unreachable, match=r"for 0 s: .* speaks another protocol; check the port"):
        asyncio.run(story())


def test_that_nobody_listens_is_said_in_the_systems_words(tmp_path: Path) -> None:
    device = impatient(tmp_path, free_port())
    with pytest.raises(Unreachable, match=r"^no server at 127\.0\.0\.1:\d+ for 0 s: Connection"):
        asyncio.run(device.run())
