"""Peers that lie, flood, mumble or fall silent: they are dropped with a reason; the run goes on."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from fedoptima.core.effects import Send
from fedoptima.core.events import Connected
from fedoptima.core.jobs import ExportModel
from fedoptima.core.messages import Stop
from fedoptima.core.types import SERVER
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import URGENT
from fedoptima.runtime.wire.frames import MAX_FRAME_BYTES, Chunk
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.runtime.server.attacks import ATTACKS, BEGUN, JOIN, MALLORY, introduced, joined, records
from tests.support.network import Gate, Server, start_device, tiny_recipe, until
from tests.support.raw_peer import RawPeer, hello

MEMORY = 200 << 20  # bytes: far less than is asked for, far more than a run of this size takes


def resident() -> int:
    """Bytes of memory in use by this process."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In the middle of a run, held there. After all attacks it comes to its end as it should."""
    tmp = tmp_path_factory.mktemp("hostile")
    gates = {"fast": Gate(), "middle": Gate()}
    method = {"name": "fedoptima", "activation_cap": 2}  # both credits are in honest hands
    recipe = tiny_recipe(method=method, deploy={"devices": 2})
    with Server(recipe, tmp / "run") as server:
        for gate in gates.values():
            gate.hold(ExportModel)
        devices = [start_device(n, server.address, tmp, gate=gates[n]) for n in gates]
        for gate in gates.values():
            gate.waits_at(ExportModel)
        memory = resident()
        yield server
        grown = resident() - memory
        for gate in gates.values():
            gate.hold()
        assert server.result().reason == "2 epochs done"
        assert [device.answer() for device in devices] == ["2 epochs done"] * 2
    again = replay(tmp / "run")
    assert again.difference is None, again.difference
    assert grown < MEMORY


@pytest.fixture
def peer(server: Server) -> Iterator[RawPeer]:
    with RawPeer(server.address) as peer:
        yield peer


@pytest.mark.parametrize("name", ATTACKS)
def test_a_peer_that_breaks_the_protocol_is_dropped_with_a_reason(
    name: str, server: Server, peer: RawPeer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fedoptima.server")
    carry_out, reason = ATTACKS[name]
    carry_out(peer)
    code, why = peer.ending()
    assert reason in why
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)
    assert any(reason in line for line in caplog.messages), "and the operator reads why"
    assert not any("Traceback" in line or "Exception" in line for line in caplog.messages)


def test_a_process_that_was_dropped_and_did_not_hear_why_is_told_when_it_comes_back(
    server: Server, peer: RawPeer
) -> None:
    introduction = hello(MALLORY)
    peer.send(introduction)
    peer.hear("welcome")
    peer.say(Stop("enough"))  # which only a server says
    dropped = peer.ending()
    assert dropped[0] is grpc.StatusCode.INVALID_ARGUMENT
    with RawPeer(server.address) as again:
        again.send(introduction)
        assert again.ending() == dropped
    with RawPeer(server.address) as anew:  # somebody has started it again
        introduced(anew)


def test_a_frame_too_large_for_the_transport_ends_the_stream(server: Server, peer: RawPeer) -> None:
    introduced(peer)
    peer.send(bytes(MAX_FRAME_BYTES + 1))
    code, _ = peer.ending()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_peer_that_asks_and_never_reads_is_dropped(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers that nobody takes must not pile up."""
    reason = "it does not read what it is answered"
    small_buffers = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    with RawPeer(server.address, small_buffers) as peer:
        introduced(peer)
        probe = wire.Frame(probe=wire.Probe(data=b"x", last=True))
        peer.send(*[probe] * 20_000)
        until(lambda: any(reason in line for line in caplog.messages), "the peer is dropped", 15)
        code, why = peer.ending()
    assert (code, why) == (grpc.StatusCode.INVALID_ARGUMENT, reason)


def test_a_device_cannot_claim_to_live_in_the_future(server: Server, peer: RawPeer) -> None:
    """A run that is resumed begins after its last record: it would wait for ever."""
    peer.send(hello(MALLORY))
    session = peer.hear("welcome").welcome.session
    peer.hear("ping")
    connected = Connected(SERVER, session)
    peer.send(records(Record(1e300, MALLORY, connected, [Send(SERVER, session, JOIN)]).to_line()))
    assert peer.hear("telemetry_ack").telemetry_ack.records == 1
    (record,) = (r for r in read_trace(server.directory.trace) if r.node == MALLORY)
    assert record.event == connected
    assert server.watch is not None
    assert record.at <= server.watch.node.clock()


def test_a_peer_that_falls_silent_in_the_middle_of_a_message_hinders_nobody(
    server: Server, peer: RawPeer
) -> None:
    joined(peer)
    peer.send(BEGUN, Chunk(URGENT, (memoryview(b"1234"),)))
    with RawPeer(server.address) as other:
        other.send(hello("late"))
        assert other.hear("welcome").welcome.session > 0


def test_a_number_that_never_was_given_locks_nobody_out(server: Server) -> None:
    for lie in (2**48, 2**64 - 1, 2**48 - 1):
        with RawPeer(server.address) as liar:
            liar.send(hello(MALLORY, last_session=lie))
            assert liar.hear("welcome").welcome.session < 1000
    with RawPeer(server.address) as honest:
        honest.send(hello("late"))
        session = honest.hear("welcome").welcome.session
    with RawPeer(server.address) as again:
        again.send(hello("late", last_session=session))
        assert again.hear("welcome").welcome.session == session + 1
