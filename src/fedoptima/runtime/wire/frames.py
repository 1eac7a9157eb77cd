"""Frames and their bytes.

Every frame is a protobuf `Frame` (wire.proto). Chunks, which are nearly all of the traffic, are
written and read here by hand in the same encoding: protobuf would copy their bytes four times on
the way, which costs more than the rest of the path together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from fedoptima.core.errors import ProtocolViolation
from fedoptima.runtime.wire import wire_pb2 as wire

MAX_FRAME_BYTES: Final = 4 << 20  # for the transport: it refuses more before it reads it

# Tags (field number * 8 + wire type) of Frame.chunk, Chunk.lane and Chunk.data.
_CHUNK, _LANE, _DATA = 0x52, 0x08, 0x12
_BEGINS_CHUNK = bytes((_CHUNK,))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tensor bytes of the message begun on this lane. On the wire, the parts are one.

    Stands for a protobuf frame with a chunk in it, and says so when asked like one.
    """

    lane: int
    parts: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        return sum(len(part) for part in self.parts)

    def WhichOneof(self, group: str) -> str | None:
        return "chunk" if group == "kind" else None


Frame: TypeAlias = wire.Frame | Chunk


def frame_bytes(frame: Frame) -> int:
    """What a frame weighs on the link, but for a few bytes."""
    nbytes: int = frame.nbytes if isinstance(frame, Chunk) else frame.ByteSize()
    return nbytes


def serialize(frame: Frame) -> bytes:
    if not isinstance(frame, Chunk):
        written: bytes = frame.SerializeToString()
        return written
    inner = bytes((_LANE, frame.lane, _DATA)) + _varint(frame.nbytes)
    outer = _varint(len(inner) + frame.nbytes)
    return b"".join((bytes((_CHUNK,)), outer, inner, *frame.parts))


def deserialize(data: bytes) -> Frame:
    if data[:1] == _BEGINS_CHUNK and (chunk := _read_chunk(data)) is not None:
        return chunk
    try:
        frame: wire.Frame = wire.Frame.FromString(data)
    except DecodeError as error:
        raise ProtocolViolation(f"a frame that cannot be read: {error}") from None
    if frame.HasField("chunk"):  # encoded in another way than ours
        return Chunk(frame.chunk.lane, (memoryview(frame.chunk.data),))
    return frame


def _read_chunk(data: bytes) -> Chunk | None:
    """A chunk in exactly the form that `serialize` writes; None: leave it to protobuf."""
    outer, at = _read_varint(data, 1)
    if outer != len(data) - at or data[at : at + 1] != bytes((_LANE,)):
        return None
    lane, at = _read_varint(data, at + 1)
    if data[at : at + 1] != bytes((_DATA,)):
        return None
    inner, at = _read_varint(data, at + 1)
    return Chunk(lane, (memoryview(data)[at:],)) if inner == len(data) - at else None


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth bit says that more follow."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends; where it has no end, its beginning."""
    number = 0
    for index, byte in enumerate(data[at : at + 5]):
        number |= (byte & 0x7F) << 7 * index
        if byte <= 0x7F:
            return number, at + index + 1
    return number, at
