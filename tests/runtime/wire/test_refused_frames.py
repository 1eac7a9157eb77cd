"""Whatever is not a message is refused, wherever it is wrong."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core import messages as core
from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import Message
from fedoptima.core.types import PayloadId
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import BULK, URGENT, Assembler, encode
from fedoptima.runtime.wire.frames import Chunk, Frame, deserialize, serialize
from tests.runtime.wire.mail import (
    CHUNK,
    LIMIT,
    assert_arrived,
    frames_of,
    over_the_wire,
    payload,
    received,
)


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
