"""Messages arrive as they were sent; whatever is not one of them is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import get_args

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core import messages as core
from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.messages import Message
from fedoptima.core.ranges import MOST, MOST_SAMPLES
from fedoptima.core.types import Payload, PayloadId
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import BULK, URGENT, Assembler, encode, lane_of
from fedoptima.runtime.wire.frames import Chunk, Frame, deserialize, frame_bytes, serialize

LIMIT = 10_000


def payload(*sizes: int, name: str = "phone/0/1") -> Payload:
    generator = torch.Generator().manual_seed(1)
    tensors = {f"layer.{i}": torch.randn(size, generator=generator) for i, size in enumerate(sizes)}
    return Payload(PayloadId(name), 4 * sum(sizes), tensors)


def frames_of(message: Message, size: int = 64) -> list[Frame]:
    outgoing = encode(message)
    return [outgoing.head, *outgoing.chunks(size)]


def over_the_wire(frames: Iterable[Frame]) -> list[Frame]:
    return [deserialize(serialize(frame)) for frame in frames]


def received(frames: Iterable[Frame], limit: int = LIMIT) -> list[Message]:
    assembler = Assembler(limit=limit)
    found = [assembler.feed(frame) for frame in over_the_wire(frames)]
    return [message for message in found if message is not None]


def assert_arrived(found: Message, sent: Message) -> None:
    assert found == sent
    data = getattr(sent, "data", None)
    if data is None or data.value is None:
        return
    arrived = found.data.value
    assert list(arrived) == list(data.value)
    assert all(torch.equal(arrived[name], tensor) for name, tensor in data.value.items())


# ---- there and back ------------------------------------------------------------------------------

NATURAL = st.integers(0, MOST)
FIGURES = st.floats(min_value=1.0, max_value=1e12)
IDENTIFIERS = st.builds("{}/{}/{}".format, st.sampled_from(["phone", "Gerät"]), NATURAL, NATURAL)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
PAYLOADS = st.one_of(
    st.builds(Payload, IDENTIFIERS, st.just(0)),
    st.lists(st.integers(0, 100), max_size=4).map(lambda sizes: payload(*sizes)),
)
PROGRAMS = st.builds(
    core.ProgramSpec, st.sampled_from(["full", "gradient"]), NATURAL, st.booleans()
)
MESSAGES: dict[type[Message], st.SearchStrategy[Message]] = {
    core.Join: st.builds(
        core.Join,
        NATURAL,
        st.integers(1, MOST_SAMPLES),
        FIGURES,
        FIGURES,
        st.integers(-1, MOST),
        st.booleans(),
        st.none() | IDENTIFIERS,
        NATURAL,
    ),
    core.ActivationBatch: st.integers(1, 100).flatmap(
        lambda parts: st.builds(
            core.ActivationBatch, NATURAL, PAYLOADS, st.integers(0, parts - 1), st.just(parts)
        )
    ),
    core.ModelUpdate: st.builds(core.ModelUpdate, NATURAL, NATURAL, PAYLOADS),
    core.Failed: st.builds(core.Failed, TEXTS, st.booleans()),
    core.Assignment: st.builds(core.Assignment, TEXTS, PROGRAMS, st.integers(1, MOST)),
    core.TurnOn: st.just(core.TurnOn()),
    core.HandIn: st.just(core.HandIn()),
    core.GradientBatch: st.builds(core.GradientBatch, NATURAL, NATURAL, PAYLOADS),
    core.GlobalModel: st.builds(core.GlobalModel, NATURAL, st.floats(0, 1), PAYLOADS),
    core.Stop: st.builds(core.Stop, TEXTS),
}


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_arrives_as_it_was_sent(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    size = data.draw(st.integers(1, 500))
    (found,) = received(frames_of(message, size))
    assert_arrived(found, message)


@given(message=MESSAGES[core.ActivationBatch], inline=st.integers(0, 2000))
def test_few_bytes_of_tensors_come_in_the_head(message: Message, inline: int) -> None:
    outgoing = encode(message, inline=inline)
    chunks = list(outgoing.chunks(64))
    assert not chunks or outgoing.nbytes > inline
    (found,) = received([outgoing.head, *chunks])
    assert_arrived(found, message)


@pytest.mark.parametrize("sizes", [(5, 0, 70), (20_000,), (16_000, 400)])
def test_tensors_lie_as_torch_would_have_put_them(sizes: tuple[int, ...]) -> None:
    message = core.ModelUpdate(1, 1, payload(*sizes))
    for inline in (0, 1 << 20):
        outgoing = encode(message, inline=inline)
        (found,) = received([outgoing.head, *outgoing.chunks(10_000)], limit=1 << 20)
        assert_arrived(found, message)
        assert all(tensor.data_ptr() % 64 == 0 for tensor in found.data.value.values())


def test_a_payload_without_tensors_is_not_one_with_none_in_it() -> None:
    empty, without = (core.ModelUpdate(1, 1, Payload(PayloadId("a"), 0, v)) for v in ({}, None))
    assert received(frames_of(empty))[0].data.value == {}
    assert received(frames_of(without))[0].data.value is None


def test_an_error_that_is_no_text_gets_through() -> None:
    (found,) = received(frames_of(core.Failed("no such file: bad\udcff.csv")))
    assert found == core.Failed("no such file: bad?.csv")


def test_the_wire_has_exactly_the_fields_of_the_messages() -> None:
    assert {oneof.name: len(oneof.fields) for oneof in wire.Head.DESCRIPTOR.oneofs} == {
        "message": len(get_args(Message))
    }
    for cls in (*get_args(Message), core.ProgramSpec, Payload):
        written = [field.name for field in getattr(wire, cls.__name__).DESCRIPTOR.fields]
        assert written == [field.name for field in fields(cls) if field.name != "value"], cls


def test_the_head_and_chunks_of_a_message_are_a_safetensors_file() -> None:
    message = core.ModelUpdate(1, 1, payload(5, 0, 70))
    outgoing = encode(message)
    data = b"".join(part for chunk in outgoing.chunks(64) for part in chunk.parts)
    assert outgoing.nbytes == len(data) == 300
    found = safetensors.torch.load(outgoing.head.head.header + data)
    assert all(torch.equal(found[name], t) for name, t in message.data.value.items())


def test_small_tensors_travel_together() -> None:
    sizes = [
        chunk.nbytes for chunk in encode(core.ModelUpdate(1, 1, payload(*[1] * 50))).chunks(64)
    ]
    assert sizes == [64, 64, 64, 8]


def test_tensors_are_looked_at_only_when_their_turn_comes() -> None:
    message = core.ModelUpdate(1, 1, payload(16, 16))
    chunks = encode(message).chunks(64)
    next(chunks)
    message.data.value["layer.1"].fill_(7.0)
    assert b"".join(next(chunks).parts) == bytes(memoryview(torch.full((16,), 7.0).numpy()))


def test_lanes_are_put_together_each_by_itself() -> None:
    model, batch = core.ModelUpdate(1, 1, payload(40)), core.ActivationBatch(2, payload(30))
    urgent, bulk = frames_of(model), frames_of(batch)
    mixed = [bulk[0], urgent[0], bulk[1], *urgent[1:], *frames_of(core.Failed("x")), *bulk[2:]]
    found = received(mixed)
    assert [type(message) for message in found] == [
        core.ModelUpdate,
        core.Failed,
        core.ActivationBatch,
    ]
    assert_arrived(found[0], model)
    assert_arrived(found[2], batch)


def test_only_activations_and_gradients_are_bulk() -> None:
    data = payload(1)
    assert lane_of(core.ActivationBatch(0, data)) == lane_of(core.GradientBatch(0, 0, data)) == BULK
    assert lane_of(core.GlobalModel(0, 0.0, data)) == lane_of(core.TurnOn()) == URGENT


def test_a_payload_that_lies_about_its_size_is_our_own_mistake() -> None:
    with pytest.raises(InvariantBroken, match="12 bytes, not 13"):
        encode(core.ModelUpdate(1, 1, replace(payload(3), nbytes=13)))


# ---- chunks by hand ------------------------------------------------------------------------------


@given(lane=st.integers(0, 1), parts=st.lists(st.binary(max_size=300), max_size=3))
def test_a_chunk_is_what_protobuf_would_have_written_and_read(
    lane: int, parts: list[bytes]
) -> None:
    chunk = Chunk(lane, tuple(map(memoryview, parts)))
    parsed = wire.Frame.FromString(serialize(chunk))
    assert parsed == wire.Frame(chunk=wire.Chunk(lane=lane, data=b"".join(parts)))
    for written in (serialize(chunk), parsed.SerializeToString()):
        read = deserialize(written)
        assert isinstance(read, Chunk)
        assert (read.lane, b"".join(read.parts)) == (lane, b"".join(parts))


def test_what_is_encoded_in_another_way_than_ours_is_left_to_protobuf() -> None:
    ping = wire.Frame(ping=wire.Ping(sent=1.0))
    chunk = wire.Chunk(lane=1, data=b"abc").SerializeToString()
    twice = bytes((0x52, len(chunk) + 2)) + chunk + b"\x08\x00"  # the lane again: the last counts
    assert deserialize(serialize(CHUNK) + serialize(ping)) == ping
    assert deserialize(twice) == Chunk(0, (memoryview(b"abc"),))


def test_a_large_chunk_is_read_without_a_copy() -> None:
    written = serialize(Chunk(BULK, (memoryview(bytes(300_000)),)))
    (part,) = deserialize(written).parts
    assert part.obj is written


def test_a_frame_weighs_what_it_carries() -> None:
    ping = wire.Frame(ping=wire.Ping(sent=1.0))
    assert frame_bytes(ping) == len(serialize(ping))
    assert frame_bytes(Chunk(0, (memoryview(b"abc"), memoryview(b"d")))) == 4


# ---- refused -------------------------------------------------------------------------------------


def head(lane: int = URGENT, header: bytes = b"", **message: object) -> wire.Frame:
    return wire.Frame(head=wire.Head(lane=lane, header=header, **message))


JOIN = {"samples": 1, "flops_per_second": 1.0, "bytes_per_second": 1.0}
DATA = {"id": "a", "nbytes": 0}


def join(**changed: object) -> list[Frame]:
    return [head(join=wire.Join(**{**JOIN, **changed}))]


def batch(**changed: object) -> list[Frame]:
    return [head(BULK, activation_batch={"seq": 0, "parts": 1, "data": DATA, **changed})]


def update(header: bytes = b"", **changed: object) -> list[Frame]:
    return [head(header=header, model_update={"version": 0, "data": DATA, **changed})]


def model(**changed: object) -> list[Frame]:
    return [head(global_model={"version": 0, "progress": 0.0, "data": DATA, **changed})]


def assignment(**changed: object) -> list[Frame]:
    return [head(assignment={"program": {"kind": "full"}, "iterations": 1, **changed})]


FOUR = encode(core.ModelUpdate(0, 0, payload(1))).head.head.header  # announces four bytes
BEGUN = update(FOUR, data={"id": "a", "nbytes": 4})
CHUNK = Chunk(URGENT, (memoryview(b"1234"),))


def inlined(data: bytes, header: bytes = FOUR) -> list[Frame]:
    (frame,) = update(header, data={"id": "a", "nbytes": 4})
    assert isinstance(frame, wire.Frame)
    frame.head.data = data
    return [frame]


RIGHT: dict[str, list[Frame]] = {
    "join": join(),
    "batch": batch(),
    "update": update(),
    "model": model(),
    "assignment": assignment(),
    "chunk": [*BEGUN, CHUNK],
    "tensors in the head": inlined(b"1234"),
    "bytes at the limit": frames_of(core.ModelUpdate(0, 0, payload(LIMIT // 4))),
}
WRONG: dict[str, list[Frame]] = {
    "an empty frame": [wire.Frame()],
    "a frame of the driver": [wire.Frame(ping=wire.Ping(sent=1.0))],
    "a head without a message": [head()],
    "a chunk without a head": [CHUNK],
    "a chunk on another lane": [*BEGUN, Chunk(BULK, CHUNK.parts)],
    "a chunk on a lane that is none": [*BEGUN, Chunk(100, CHUNK.parts)],
    "a chunk of nothing": [*BEGUN, Chunk(URGENT, ())],
    "a chunk too many": [*BEGUN, CHUNK, CHUNK],
    "a byte too many": [*BEGUN, Chunk(URGENT, (memoryview(b"12345"),))],
    "a byte too many in the head": inlined(b"12345"),
    "a byte too few in the head": inlined(b"123"),
    "bytes in a head without a header": inlined(b"1234", b""),
    "a chunk after what came in the head": [*inlined(b"1234"), CHUNK],
    "a message before the last is complete": [*BEGUN, *join()],
    "a message on the wrong lane": [head(BULK, turn_on={})],
    "a message on a lane that is none": [head(2, turn_on={})],
    "tensors where none belong": [head(header=FOUR, turn_on={})],
    "a header that is none": update(b"\0", data={"id": "a", "nbytes": 4}),
    "bytes without a header": update(data={"id": "a", "nbytes": 4}),
    "fewer bytes than announced": update(FOUR, data={"id": "a", "nbytes": 8}),
    "more bytes than announced": update(FOUR, data={"id": "a", "nbytes": 0}),
    "negative bytes": update(data={"id": "a", "nbytes": -1}),
    "bytes above the limit": frames_of(core.ModelUpdate(0, 0, payload(LIMIT // 4 + 1)))[:1],
    "no payload": update(data={}),
    "an endless id": update(data={"id": "a" * 201}),
    "an id with a line in it": update(data={"id": "a\nb"}),
    "a pending id that is empty": join(pending=""),
    "an endless pending id": join(pending="a" * 201),
    "no samples": join(samples=0),
    "infinite speed": join(flops_per_second=math.inf),
    "a speed that is none": join(flops_per_second=math.nan),
    "a negative bandwidth": join(bytes_per_second=-1.0),
    "a bandwidth that is none": join(bytes_per_second=math.nan),
    "a version before the first": join(version=-2),
    "an incarnation before the first": join(incarnation=-1),
    "a step before the first": join(step=-1),
    "a batch before the first": batch(seq=-1),
    "a part of nothing": batch(parts=0),
    "a part beyond the last": batch(part=1),
    "a part before the first": batch(part=-1),
    "a batch with an empty id": batch(data={}),
    "a gradient before the first": [head(BULK, gradient_batch={"seq": -1, "data": DATA})],
    "a gradient of a part before": [head(BULK, gradient_batch={"part": -1, "data": DATA})],
    "a gradient with an empty id": [head(BULK, gradient_batch={"data": {}})],
    "an update of no model": update(version=-1),
    "negative work": update(trained=-1),
    "a model before the first": model(version=-1),
    "progress that is none": model(progress=math.nan),
    "progress backwards": model(progress=-0.5),
    "a model with an empty id": model(data={}),
    "no iterations": assignment(iterations=0),
    "an endless plan": assignment(plan="a" * (2 << 20)),
    "a program without a kind": assignment(program={}),
    "negative parts": assignment(program={"kind": "full", "micro_batches": -1}),
    "an endless error": [head(failed={"error": "a" * (2 << 20)})],
    "an endless reason": [head(stop={"reason": "a" * (2 << 20)})],
}


@pytest.mark.parametrize("frames", RIGHT.values(), ids=RIGHT)
def test_what_the_wrong_frames_were_made_from_is_right(frames: list[Frame]) -> None:
    assert received(frames)


@pytest.mark.parametrize("frames", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused(frames: list[Frame]) -> None:
    *before, last = over_the_wire(frames)
    assembler = Assembler(limit=LIMIT)
    for frame in before:
        assembler.feed(frame)
    with pytest.raises(ProtocolViolation):
        assembler.feed(last)


@pytest.mark.parametrize("frames", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_before_or_while_its_tensors_are_filled_later(
    frames: list[Frame],
) -> None:
    assembler = Assembler(limit=LIMIT, later=True)

    def receive() -> None:
        for frame in over_the_wire(frames):
            assembler.feed(frame)
            if (filling := assembler.take_unfilled()) is not None:
                filling.fill()

    with pytest.raises(ProtocolViolation):
        receive()


@pytest.mark.parametrize("frames", RIGHT.values(), ids=RIGHT)
def test_messages_whose_tensors_are_filled_later_are_the_same(frames: list[Frame]) -> None:
    assembler, found = Assembler(limit=LIMIT, later=True), []
    for frame in over_the_wire(frames):
        message = assembler.feed(frame)
        if (filling := assembler.take_unfilled()) is not None:
            filling.fill()
        if message is not None:
            found.append(message)
    for ours, expected in zip(found, received(frames), strict=True):
        assert_arrived(ours, expected)


def test_a_refusal_does_not_repeat_everything_it_was_sent() -> None:
    (frame,) = WRONG["an endless plan"]
    with pytest.raises(ProtocolViolation) as refused:
        Assembler(limit=LIMIT).feed(frame)
    assert len(str(refused.value)) < 1000


def test_bytes_that_are_no_frame_are_refused() -> None:
    for raw in (b"\xff", b"R", b"R\x05\x08", b"R\x09\x08\x01\x12\x03abc", b"\x0a\x02\x12"):
        with pytest.raises(ProtocolViolation, match="cannot be read"):
            deserialize(raw)


ORDINARY = [
    *frames_of(core.ActivationBatch(1, payload(20, 3))),
    *frames_of(core.Join(0, 10, 1e9, 1e6, pending=PayloadId("phone/0/1"))),
    *frames_of(core.Assignment("{}", core.ProgramSpec("gradient", 2), 5)),
]


@given(
    which=st.lists(st.integers(0, len(ORDINARY) - 1), min_size=1, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    raw=st.binary(max_size=60),
)
def test_whatever_comes_is_a_message_or_refused(
    which: list[int], changes: list[tuple[int, int]], raw: bytes
) -> None:
    assembler = Assembler(limit=LIMIT)
    for index in which:
        written = bytearray(serialize(ORDINARY[index]))
        for place, value in changes:
            written[place % len(written)] = value
        for data in (bytes(written), raw):
            try:
                found = assembler.feed(deserialize(data))
            except ProtocolViolation:
                continue
            assert found is None or isinstance(found, get_args(Message))
