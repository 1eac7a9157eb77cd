"""What a gateway and the server tell each other, over a pair of sockets inside the machine.

Both ends are processes of the same run, so plain pickles do; what devices send is decoded and
checked before. Tensors are in memory that both share, and only where they are is told.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, cast

from torch import Tensor

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import (
    ActivationBatch,
    GlobalModel,
    GradientBatch,
    Message,
    ModelUpdate,
)
from fedoptima.core.types import NodeId
from fedoptima.engine.server_admission import Expected
from fedoptima.runtime.gateway.arena import Arena, Block, Placed, Stored
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.runtime.server.reception import Admitted, Visitor
from fedoptima.runtime.server.session import Refusal
from fedoptima.runtime.timeouts import Timeouts

_LENGTH: Final = 8
_AT_ONCE: Final = 256 << 10  # bytes

Key: TypeAlias = tuple[NodeId, int]  # a session: the device and its number
Carrier: TypeAlias = ActivationBatch | ModelUpdate | GradientBatch | GlobalModel


# ---- from the server -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The first thing a gateway is told; then comes the address."""

    tls: ServerTLS | None
    access: AccessLists
    timeouts: Timeouts
    recipe: str  # what every device is sent
    limit: int  # bytes of the largest message
    clock: float  # what the run's clock shows when time.monotonic() is 0


@dataclass(frozen=True, slots=True)
class Answer:
    """To a `Knock`."""

    ticket: int
    answer: Admitted | Refusal


@dataclass(frozen=True, slots=True)
class Expect:
    """There is a plan: this is what devices may send from now on."""

    expected: Expected


@dataclass(frozen=True, slots=True)
class Deliver:
    session: Key
    message: Message  # without its tensors
    tensors: Stored | dict[str, Tensor] | None


@dataclass(frozen=True, slots=True)
class Acknowledge:
    session: Key
    records: int


@dataclass(frozen=True, slots=True)
class End:
    session: Key
    refusal: Refusal | None


@dataclass(frozen=True, slots=True)
class Ask:
    """Does the device answer a ping?"""

    session: Key
    patience: float


@dataclass(frozen=True, slots=True)
class Farewell:
    """Send what waits, take the last records, and end."""


# ---- from a gateway ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listening:
    """It has begun; with what went wrong, if it could not."""

    problem: str = ""


@dataclass(frozen=True, slots=True)
class Knock:
    ticket: int
    visitor: Visitor


@dataclass(frozen=True, slots=True)
class Arrived:
    """A device's message, which was checked."""

    session: Key
    message: Message  # without its tensors
    tensors: Stored | dict[str, Tensor] | None


@dataclass(frozen=True, slots=True)
class Wrong:
    """What a device has sent is not to be taken."""

    session: Key
    error: ProtocolViolation


@dataclass(frozen=True, slots=True)
class Records:
    session: Key
    first: int
    lines: list[str]
    offset: float | None  # the device's clock in terms of ours, if it is known


@dataclass(frozen=True, slots=True)
class Closed:
    session: Key
    why: str


@dataclass(frozen=True, slots=True)
class Answers:
    session: Key
    answers: bool


@dataclass(frozen=True, slots=True)
class Said:
    """For the server's log."""

    level: int
    text: str
    device: str | None


@dataclass(frozen=True, slots=True)
class Free:
    """A block of the receiver's own arena is not needed any more. Both sides say so."""

    block: Block


# ---- the link itself -----------------------------------------------------------------------------


class Link:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._told: list[bytes] = []  # since the event loop's last turn: written together

    @classmethod
    async def over(cls, end: socket.socket) -> Link:
        return cls(*await asyncio.open_unix_connection(sock=end))

    def tell(self, what: object) -> None:
        """Never waits. What is told to a process that has ended is lost."""
        data = pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL)
        if not self._told:
            self._loop.call_soon(self._write)
        self._told += len(data).to_bytes(_LENGTH, "little"), data

    def _write(self) -> None:
        told, self._told = self._told, []
        if told:
            self._writer.write(b"".join(told))

    async def heard(self) -> AsyncIterator[object]:
        """Until the other process has ended."""
        came = bytearray()
        try:
            while data := await self._reader.read(_AT_ONCE):
                came += data
                begin = 0
                while (end := _end_of(came, begin)) <= len(came):
                    yield pickle.loads(came[begin + _LENGTH : end])
                    begin = end
                del came[:begin]
        except ConnectionError:
            return

    async def flush(self) -> None:
        self._write()
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        self._write()
        self._writer.close()


def _end_of(came: bytearray, begin: int) -> int:
    """Where the message ends that begins there; at the least, where its length does."""
    start = begin + _LENGTH
    return start + int.from_bytes(came[begin:start], "little") if start <= len(came) else start


def taken_apart(
    message: Message, arena: Arena
) -> tuple[Message, Stored | dict[str, Tensor] | None]:
    """The message without its tensors, and those in the arena; themselves, if it has no room."""
    if not isinstance(message, Carrier) or message.data.value is None:
        return message, None
    tensors = cast("dict[str, Tensor]", message.data.value)
    bare = replace(message, data=replace(message.data, value=None))
    if isinstance(tensors, Placed):  # where it came in
        return bare, tensors.hand_on()
    return bare, arena.put(tensors) or {name: t.cpu() for name, t in tensors.items()}


def put_together(message: Message, tensors: dict[str, Tensor] | None) -> Message:
    if tensors is None or not isinstance(message, Carrier):
        return message
    return replace(message, data=replace(message.data, value=tensors))
