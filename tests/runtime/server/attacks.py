"""Ways to break the protocol, each with the reason for which its peer is dropped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedoptima.core.effects import Note, NoteKind
from fedoptima.core.events import Connected, JobFailed
from fedoptima.core.jobs import FullStep
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
from fedoptima.trace.record import Record
from tests.support.raw_peer import RawPeer, hello

MALLORY = NodeId("slow")  # a name that the recipe knows
JOIN = Join(incarnation=0, samples=32, flops_per_second=1e9, bytes_per_second=1e6)
WORKING = replace(JOIN, version=0, training=True)
# A model has 1,100 bytes here, a batch 2,120: twice that, and 64 KiB.
LIMIT, BATCH_LIMIT = 67736, 69776


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
    "a name that is a path": (
        attack(nothing, hello("../../etc/passwd")),
        "cannot be a device's name",
    ),
    "the server's name": (attack(nothing, hello("server")), "cannot be a device's name"),
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
