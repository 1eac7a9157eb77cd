"""What a server holds for one peer, and for how long: memory, connections, time."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch

from fedoptima.core.effects import Note, NoteKind, Send
from fedoptima.core.events import Rejected
from fedoptima.core.messages import GlobalModel, Join, ModelUpdate
from fedoptima.core.types import Payload, PayloadId
from fedoptima.experiments.server_setup import prepare_server
from fedoptima.runtime.address import Address
from fedoptima.runtime.server.allowance import Allowance
from fedoptima.runtime.server.descriptors import most_connections
from fedoptima.runtime.server.reception import NodeReception, Visitor
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import STREAMS
from fedoptima.runtime.wire.codec import URGENT, encode
from fedoptima.runtime.wire.frames import Chunk
from fedoptima.runtime.wire.outbox import Outbox
from fedoptima.trace.record import Record
from tests.support.network import QUICK, Server, start_device, tiny_recipe, until
from tests.support.raw_peer import DEADLINE, RawPeer, hello
from tests.support.stage import NAME, Stage

HASTY = replace(QUICK, stall=0.5, ping_every=0.1)  # with those who have introduced themselves
IMPATIENT = replace(HASTY, handshake=0.5, idle=0.5)
JOIN = Join(incarnation=0, samples=32, flops_per_second=1e9, bytes_per_second=1e6)
RECIPE = tiny_recipe("fl", deploy={"devices": 1})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(RECIPE, tmp_path / "run", timeouts=IMPATIENT) as server:
        yield server


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Server]:
    with Server(RECIPE, tmp_path / "run", timeouts=HASTY) as server:
        yield server


def connect(address: Address) -> socket.socket:
    return socket.create_connection((address.host, address.port), timeout=DEADLINE)


def read_to_the_end(connection: socket.socket) -> None:
    """Fails if the other side does not close it."""
    while connection.recv(4096):
        pass


# ---- messages ------------------------------------------------------------------------------------


def test_a_message_that_stops_half_way_ends_its_session(hasty: Server) -> None:
    introduction = hello("slow")
    with RawPeer(hasty.address) as peer:
        peer.send(introduction)
        peer.hear("welcome")
        data = Payload(PayloadId("slow/0/1"), 16, {"weight": torch.zeros(4)})
        peer.send(encode(ModelUpdate(0, 8, data)).head, Chunk(URGENT, (memoryview(b"1234"),)))
        code, why = peer.ending()
    assert (code, why) == (grpc.StatusCode.UNAVAILABLE, "a message stopped half-way, 0.5 s ago")
    with RawPeer(hasty.address) as again:  # the same process: its link had stalled
        again.send(introduction)
        assert again.hear("welcome")


def test_a_device_that_says_nothing_between_messages_is_not_stalled(hasty: Server) -> None:
    with RawPeer(hasty.address) as peer:
        peer.send(hello("slow"))
        for _ in range(10):  # pings, over twice the time
            peer.hear("ping")
        peer.say(JOIN)
        assert peer.wait_for(GlobalModel)


def test_a_device_that_does_not_read_is_dropped_before_much_waits_for_it(tmp_path: Path) -> None:
    recorded: list[Record] = []

    async def story() -> None:
        stage = Stage(tmp_path, prepare_server(RECIPE))
        stage.node.observers.append(recorded.append)
        session = await stage.begin()
        session.outbox = Outbox()
        model = Payload(PayloadId("server/0/1"), 4 << 20, {"weight": torch.zeros(1 << 20)})
        for version in range(3):
            stage.node.send(Send(NAME, session.number, GlobalModel(version, 0.0, model)))
        await stage.until(lambda: NAME not in stage.node.sessions)
        refusal = session.ended.result()
        assert refusal is not None
        assert "it does not read: 12," in refusal.text
        assert refusal.code is grpc.StatusCode.UNAVAILABLE
        back = Visitor(NAME, session.process, session.number, "nowhere")
        assert (await NodeReception(stage.node).admit(back)).session > session.number
        await stage.end()

    asyncio.run(story())
    (dropped,) = (record for record in recorded if isinstance(record.event, Rejected))
    assert [type(effect) for effect in dropped.effects] == [Note]
    assert dropped.effects[0].kind == NoteKind.PEER_DROPPED  # type: ignore[union-attr]


def test_a_frame_that_the_transport_does_not_take_is_stuck() -> None:
    async def story() -> None:
        outbox = Outbox()
        outbox.put_frame(wire.Frame(ping=wire.Ping(sent=0.0)))
        outbox.put_frame(wire.Frame(ping=wire.Ping(sent=1.0)))
        assert outbox.stuck(1e9) == 0.0
        frames = outbox.frames()
        await anext(frames)
        assert outbox.stuck(1e9) > 0.0
        await anext(frames)
        outbox.close()
        assert [frame async for frame in frames] == []
        assert outbox.stuck(1e9) == 0.0

    asyncio.run(story())


def test_a_device_that_connects_again_and_again_is_refused_for_a_while(
    hasty: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """It is sent a model each time that it joins, as if it joined again and again."""
    endings = set()
    for _ in range(200):
        with RawPeer(hasty.address) as peer:
            peer.send(hello("slow"))
            try:
                next(peer.frames())
            except grpc.RpcError as error:
                endings.add((error.code(), error.details()))
                break
    assert endings == {(grpc.StatusCode.UNAVAILABLE, "slow connects too often; come later")}
    assert "slow connects too often" in caplog.text
    with RawPeer(hasty.address) as other:
        other.send(hello("fast"))
        assert other.hear("welcome")
    hasty.__exit__()
    assert "did not close their connections" not in caplog.text, "all streams have come to an end"


@pytest.mark.parametrize("spent", [0, 60, 100])
def test_an_allowance_is_refilled_with_time(spent: int) -> None:
    allowance = Allowance(per_second=2.0, burst=100.0)
    assert allowance.take(spent, 10.0)
    assert not allowance.take(101 - spent, 10.0)
    assert allowance.take(min(100, 102 - spent), 11.0)
    assert not allowance.take(1000.0, 1e9)


# ---- connections ---------------------------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed(server: Server) -> None:
    with connect(server.address) as silent:
        read_to_the_end(silent)


def test_a_connection_on_which_nothing_is_begun_is_closed(server: Server) -> None:
    settings = bytes(3) + b"\x04" + bytes(5)  # an empty frame of HTTP/2
    with connect(server.address) as idle:
        idle.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        read_to_the_end(idle)


def test_streams_without_an_introduction_are_ended_and_hinder_nobody(
    server: Server, tmp_path: Path
) -> None:
    peers = [RawPeer(server.address) for _ in range(3 * STREAMS)]
    try:
        device = start_device("fast", server.address, tmp_path)
        assert device.answer() == "2 epochs done"
        for peer in peers:
            assert peer.ending() in (
                (grpc.StatusCode.DEADLINE_EXCEEDED, "no introduction came"),
                (grpc.StatusCode.UNAVAILABLE, "Socket closed"),  # the run has ended meanwhile
            )
    finally:
        for peer in peers:
            peer.__exit__()


LOW_SERVER = """
import resource, sys, time
from pathlib import Path
from dataclasses import replace
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from tests.runtime.server.test_limits import IMPATIENT, RECIPE
from tests.support.network import Server
with Server(RECIPE, Path(sys.argv[1]), timeouts=replace(IMPATIENT, handshake=2.0)) as server:
    print(server.address.port, flush=True)
    print(server.result().reason, flush=True)
"""


def test_1500_silent_connections_to_1024_descriptors_do_not_lock_a_device_out(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", LOW_SERVER, str(tmp_path / "run")]
    silent: list[socket.socket] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = Address("127.0.0.1", int(process.stdout.readline()))
            descriptors = Path(f"/proc/{process.pid}/fd")
            for _ in range(1500):
                silent.append(connect(address))
            until(lambda: len(list(descriptors.iterdir())) > 500, "they are taken")
            assert len(list(descriptors.iterdir())) <= 1024 - 64, "some are left for its files"
            device = start_device("fast", address, tmp_path)
            assert device.answer() == "2 epochs done"
            assert process.stdout.readline() == "2 epochs done\n"
        finally:
            for connection in silent:
                connection.close()
            process.kill()


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows() -> None:
    script = (
        "import resource; from fedoptima.runtime.server.descriptors import most_connections\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048))\n"
        "print(most_connections(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == [str(2048 - 128), "2048"], done.stderr
    assert most_connections() <= max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
