"""The way between a gateway and the server: a pair of sockets inside the machine.

Both ends are processes of the same run, so plain pickles do; what devices send is decoded and
checked before. Tensors are in memory that both share, and only where they are is told.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final, cast

from torch import Tensor

from fedoptima.core.messages import ActivationBatch, Message
from fedoptima.core.types import Payload
from fedoptima.runtime.gateway.arena import Arena, Placed, Stored
from fedoptima.runtime.gateway.compact_messages import compacted, expanded
from fedoptima.runtime.gateway.messages import Carrier

_LENGTH: Final = 8
_AT_ONCE: Final = 256 << 10  # bytes


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
        data = pickle.dumps(compacted(what), protocol=pickle.HIGHEST_PROTOCOL)
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
                    yield expanded(pickle.loads(came[begin + _LENGTH : end]))
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
    bare = _with(message, None)
    if isinstance(tensors, Placed):  # where it came in
        return bare, tensors.hand_on()
    return bare, arena.put(tensors) or {name: t.cpu() for name, t in tensors.items()}


def put_together(message: Message, tensors: dict[str, Tensor] | None) -> Message:
    if tensors is None or not isinstance(message, Carrier):
        return message
    return _with(message, tensors)


def _with(message: Carrier, tensors: dict[str, Tensor] | None) -> Message:
    data = Payload(message.data.id, message.data.nbytes, tensors)
    if type(message) is ActivationBatch:  # nearly all of them; `replace` takes its time
        return ActivationBatch(message.seq, data, message.part, message.parts, message.cut)
    return replace(message, data=data)
