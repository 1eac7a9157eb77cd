"""Frames as bytes: chunks are written by hand, everything else by protobuf."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.errors import ProtocolViolation
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import BULK
from fedoptima.runtime.wire.frames import Chunk, deserialize, frame_bytes, serialize
from tests.runtime.wire.mail import CHUNK


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


def test_bytes_that_are_no_frame_are_refused() -> None:
    for raw in (b"\xff", b"R", b"R\x05\x08", b"R\x09\x08\x01\x12\x03abc", b"\x0a\x02\x12"):
        with pytest.raises(ProtocolViolation, match="cannot be read"):
            deserialize(raw)
