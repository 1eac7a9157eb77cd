"""Peers that lie, flood, mumble or fall silent: they are dropped with a reason; the run goes on."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch
from torch import Tensor

from fedoptima.core.effects import Note, NoteKind, Send
from fedoptima.core.events import Connected, JobFailed
from fedoptima.core.jobs import ExportModel, FullStep
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    Failed,
    GlobalModel,
    Join,
    Message,
    ModelUpdate,
    Stop,
)
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import BULK, URGENT, encode
from fedoptima.runtime.wire.frames import MAX_FRAME_BYTES, Chunk
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.support.network import Gate, Server, start_device, tiny_recipe, until
from tests.support.raw_peer import RawPeer, hello

MALLORY = NodeId("slow")  # a name that the recipe knows
JOIN = Join(incarnation=0, samples=32, flops_per_second=1e9, bytes_per_second=1e6)
WORKING = replace(JOIN, version=0, training=True)
# A model has 1,100 bytes here, a batch 2,120: twice that, and 64 KiB.
LIMIT, BATCH_LIMIT = 67736, 69776
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


def introduced(peer: RawPeer) -> None:
    peer.send(hello(MALLORY))
    peer.hear("welcome")
    peer.hear("ping")


def joined(peer: RawPeer) -> list[Message]:
    """A member like any other, with an assignment and a model to train."""
    introduced(peer)
    peer.say(JOIN)
    return peer.wait_for(Assignment, GlobalModel)


def payload(**tensors: Tensor) -> Payload:
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    return Payload(PayloadId(f"{MALLORY}/0/1"), nbytes, tensors)


def activations(seq: int, channels: int = 4) -> ActivationBatch:
    tensors = {"activations.0": torch.zeros(8, channels, 4, 4), "labels": torch.zeros(8).long()}
    return ActivationBatch(seq, payload(**tensors))


def records(*lines: str, first: int = 0) -> wire.Frame:
    return wire.Frame(telemetry=wire.Telemetry(first=first, lines=lines))


def failure(text: str) -> str:
    return Record(1.0, MALLORY, JobFailed(1, FullStep(0), text), []).to_line()


def forged(about: NodeId) -> str:
    note = Note(NoteKind.DEVICE_FAILED, about, "it cheats")
    return Record(1.0, MALLORY, Connected(SERVER, 1), [note]).to_line()


def header(nbytes: int) -> bytes:
    """Of one tensor of so many bytes."""
    entry = {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}
    text = json.dumps({"huge": entry}).encode()
    return len(text).to_bytes(8, "little") + text


def promise(nbytes: int, lane: int = URGENT) -> wire.Frame:
    data = wire.Payload(id="slow/0/1", nbytes=nbytes)
    head = wire.Head(lane=lane, header=header(nbytes))
    if lane == URGENT:
        head.model_update.CopyFrom(wire.ModelUpdate(data=data))
    else:
        head.activation_batch.CopyFrom(wire.ActivationBatch(data=data, parts=1))
    return wire.Frame(head=head)


Attack = Callable[[RawPeer], None]


def attack(begin: Attack, *frames: wire.Frame | Chunk | bytes | Message) -> Attack:
    def carry_out(peer: RawPeer) -> None:
        begin(peer)
        for frame in frames:
            if isinstance(frame, wire.Frame | Chunk | bytes):
                peer.send(frame)
            else:
                peer.say(frame)

    return carry_out


def nothing(peer: RawPeer) -> None:
    pass


def member(peer: RawPeer) -> None:
    joined(peer)


CHUNK = Chunk(URGENT, (memoryview(b"12345678"),))
BEGUN = encode(ModelUpdate(0, 8, payload(weight=torch.zeros(4)))).head
BATCH = activations(0).data
ATTACKS: dict[str, tuple[Attack, str]] = {
    "garbage first": (attack(nothing, b"\xff\xff garbage"), "cannot be read"),
    "no introduction": (attack(nothing, CHUNK), "first frame is a Hello"),
    "a payload by the server's name": (
        attack(member, replace(activations(0), data=replace(BATCH, id=PayloadId("server/0/1")))),
        "names a payload 'server/0/1'",
    ),
    "a payload whose name would end a key": (
        attack(member, replace(activations(0), data=replace(BATCH, id=PayloadId("evil|x")))),
        "names a payload 'evil|x'",
    ),
    "a name that is a path": (attack(nothing, hello("../../etc/passwd")), "is no name"),
    "the server's name": (attack(nothing, hello("server")), "is no name"),
    "garbage later": (attack(introduced, b"\xff\xff garbage"), "cannot be read"),
    "an introduction twice": (attack(introduced, hello(MALLORY)), "does not send a hello frame"),
    "what only a server says": (attack(member, Stop("the end")), "does not send Stop"),
    "a chunk without a head": (attack(introduced, CHUNK), "a chunk that belongs to no message"),
    "a head within a message": (attack(introduced, BEGUN, BEGUN), "has no place now"),
    "more bytes than promised": (
        attack(introduced, BEGUN, Chunk(URGENT, (memoryview(bytes(17)),))),
        "bytes more than the header says",
    ),
    "five gigabytes promised": (attack(introduced, promise(5 << 30)), f"limit {LIMIT} bytes"),
    "a megabyte promised, not sent": (attack(introduced, promise(1 << 20)), f"limit {LIMIT} bytes"),
    "a megabyte of activations": (
        attack(introduced, promise(1 << 20, BULK)),
        f"limit {BATCH_LIMIT} bytes",
    ),
    "a process with a name of 4 MB": (
        attack(nothing, hello(MALLORY, process="x" * (MAX_FRAME_BYTES - 1000))),
        "too long a name",
    ),
    "five gigabytes of elements": (
        attack(introduced, wire.Frame(head=wire.Head(header=header(5 << 30)))),
        "unknown kind",
    ),
    "impossible figures": (
        attack(introduced, Join(0, 32, float("nan"), 1.0)),
        "Join.flops_per_second = nan: must be from 1 to 1e+18",
    ),
    "no word of joining": (attack(introduced, activations(0)), "spoke before joining"),
    "joining twice": (attack(member, JOIN), "joined twice"),
    "joining again and again with work": (attack(introduced, WORKING, WORKING), "joined twice"),
    "discarding its work again and again": (
        attack(introduced, WORKING, JOIN, JOIN),
        "joined twice",
    ),
    "activations without a credit": (
        attack(member, activations(0)),
        "without a turn-on",
    ),
    "activations of another shape": (
        attack(member, activations(0, channels=5)),
        "tensor 'activations.0' is (8, 5, 4, 4)",
    ),
    "labels that are no classes": (
        attack(
            member,
            ActivationBatch(
                0,
                payload(
                    **{"activations.0": torch.zeros(2, 4, 4, 4), "labels": torch.tensor([0, 7])}
                ),
            ),
        ),
        "labels from 0 to 7",
    ),
    "a model of other tensors": (
        attack(member, ModelUpdate(0, 8, payload(weight=torch.zeros(4)))),
        "is missing, and",
    ),
    "a model without tensors": (
        attack(member, ModelUpdate(0, 8, Payload(PayloadId("slow/0/1"), 0))),
        "is missing",
    ),
    "a pong to no ping": (
        attack(introduced, wire.Frame(pong=wire.Pong(sent=1e9, device_time=0.0))),
        "a ping that was never sent",
    ),
    "a clock that is no number": (
        attack(introduced, wire.Frame(pong=wire.Pong(sent=0.0, device_time=float("inf")))),
        "a ping that was never sent",
    ),
    "records of another node": (
        attack(introduced, records('[1.0,"fast",["Disconnected","server",1]]')),
        "not its own",
    ),
    "records that are none": (
        attack(introduced, records('[1.0,"slow",["Exec","rm"]]')),
        "a record that no device makes",
    ),
    "records that cannot be read back": (
        attack(introduced, records('[1.0,"slow",["JobDone","of","nothing"]]')),
        "a record that no device makes",
    ),
    "an error of 651 KiB": (
        attack(introduced, records(failure("x" * (651 << 10)))),
        "a record that no device makes",
    ),
    "a note that speaks for another": (
        attack(introduced, records(forged(NodeId("fast")))),
        "a record that no device makes",
    ),
    "a reason of 651 KiB": (attack(member, Failed("x" * (651 << 10))), "impossible figures"),
    "records after a gap": (
        attack(introduced, records('[1.0,"slow",["Disconnected","server",1]]', first=10_000)),
        "unexpected records",
    ),
}


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
