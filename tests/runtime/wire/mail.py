"""Messages made by hand, and what arrives of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fedoptima.core.messages import Message
from fedoptima.core.types import Payload, PayloadId
from fedoptima.runtime.wire.codec import URGENT, Assembler, encode
from fedoptima.runtime.wire.frames import Chunk, Frame, deserialize, serialize

LIMIT = 10_000
CHUNK = Chunk(URGENT, (memoryview(b"1234"),))


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
