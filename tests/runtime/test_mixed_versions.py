"""Server and devices of different releases, from what those of 0.1.0 said to each other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedoptima.runtime.address import Address
from fedoptima.runtime.device.client import Pace, Refused
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import PATH
from fedoptima.runtime.wire.frames import Chunk, deserialize, serialize
from fedoptima.version import __version__
from tests.support.network import Server, start_device, tiny_recipe
from tests.support.raw_peer import RawPeer, hello
from tools.stored_stream import DOWN, UP, read

STORED = Path(__file__).parents[1] / "stored" / "0_1_0" / "stream.gz"
WAITED_FOR = ("hello", "join", "model_update")  # the rest comes when it comes


def kind_of(data: bytes) -> str | None:
    """Of a frame; of a message that begins, the message's."""
    frame = deserialize(data)
    kind = frame.WhichOneof("kind")
    if isinstance(frame, Chunk) or kind != "head":
        return kind
    return frame.head.WhichOneof("message")


class Recorded(grpc.GenericRpcHandler):
    """A server that says what the recorded one said, when it has heard what that one had heard."""

    def __init__(self, *welcomes: wire.Frame) -> None:
        self._welcomes = welcomes  # said instead

    def service(self, details: Any) -> Any:
        assert details.method == PATH
        return grpc.stream_stream_rpc_method_handler(self._serve)

    def _serve(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        kinds = map(kind_of, frames)
        for direction, data in read(STORED):
            kind = kind_of(data)
            if direction == UP and kind in WAITED_FOR:
                assert any(said == kind for said in kinds), f"no {kind} came"
            elif direction == DOWN and kind == "welcome" and self._welcomes:
                yield from map(serialize, self._welcomes)
            elif direction == DOWN:
                yield data
        for _ in frames:  # until the device hangs up
            pass


@contextmanager
def server_of_0_1_0(*welcomes: wire.Frame) -> Iterator[Address]:
    server = grpc.server(ThreadPoolExecutor(2), handlers=[Recorded(*welcomes)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Address("127.0.0.1", port)
    finally:
        server.stop(0).wait()


def first(direction: bytes, kind: str) -> bytes:
    return next(data for way, data in read(STORED) if way == direction and kind_of(data) == kind)


def test_a_device_of_the_last_release_is_refused_with_both_versions(tmp_path: Path) -> None:
    """It would stumble over keys of the recipe that it does not know."""
    with Server(tiny_recipe(), tmp_path / "run") as server, RawPeer(server.address) as device:
        device.send(first(UP, "hello"))
        code, why = device.ending()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert why == (
        f"'pi' has fedoptima 0.1.0, this server {__version__}, which works with devices of 0.2 or "
        "later: install the same version on both"
    )


def test_a_device_of_the_same_release_is_let_in_whatever_comes_after_it(tmp_path: Path) -> None:
    """A newer device decides by itself: it is told the server's version."""
    release = ".".join(__version__.split(".")[:2])
    for version in (__version__, f"{release}.99", "99.0", "unknown"):
        with (
            Server(tiny_recipe(), tmp_path / version) as server,
            RawPeer(server.address) as device,
        ):
            device.send(hello("slow", version=version))
            assert device.hear("welcome").welcome.version == __version__


def test_a_device_works_with_a_server_of_the_last_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="fedoptima.device")
    with server_of_0_1_0() as address:
        device = start_device("pi", address, tmp_path, pace=Pace(up=1e7))  # as the recorded one
        assert device.answer() == "2 epochs done"
    assert f"(the server has fedoptima 0.1.0, this device {__version__})" in caplog.text


def test_a_recipe_that_a_device_cannot_read_is_told_with_both_versions(tmp_path: Path) -> None:
    """Of a server to come."""
    recipe = '{"recipe": {"name": "later", "invented_later": 1}}'
    welcome = wire.Welcome(run="r", session=1, recipe=recipe, version="99.0")
    with server_of_0_1_0(wire.Frame(welcome=welcome)) as address:
        device = start_device("pi", address, tmp_path)
        with pytest.raises(Refused, match="invented_later") as caught:
            device.answer()
    assert str(caught.value).endswith(
        f"the server has fedoptima 99.0, this device {__version__}: install the same version on "
        "both"
    )
