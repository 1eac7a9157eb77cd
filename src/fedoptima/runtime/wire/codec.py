"""The cores' messages as frames of the stream, and back.

A message is one head and, where it carries tensors, chunks after it on the same lane. A peer can
make this module build the ten classes of core/messages.py and tensors within the limit; nothing
else. Whatever else it sends is a ProtocolViolation, found before memory is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Final, NoReturn, assert_never, cast

from torch import Tensor

from fedoptima.core import messages as core
from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.messages import Message
from fedoptima.core.ranges import MOST, check_figures
from fedoptima.core.text import MOST_TEXT
from fedoptima.core.types import Payload, PayloadId
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.frames import Chunk, Frame
from fedoptima.runtime.wire.tensors import (
    Filling,
    Memory,
    bytes_of,
    header_of,
    read_together,
    slices,
)

SCHEMA: Final = 1  # raised when an older peer would misread what a newer one says
URGENT, BULK = 0, 1  # lanes
# Half of it costs a fifth of the throughput (benchmarks/wire.py), twice as much gains little; an
# urgent message waits for the chunk before it.
CHUNK_BYTES: Final = 512 << 10
# Up to so many bytes of tensors travel in the head, to a peer that reads them there.
INLINE_BYTES: Final = 64 << 10
MAX_IDENTIFIER: Final = 200  # characters
MAX_TEXT: Final = 1 << 20
MAX_SHOWN: Final = 300

_OBJECT_BYTES: Final = 1024  # of a message without its content

_KINDS: Final[dict[str, type[Message]]] = {
    "join": core.Join,
    "activation_batch": core.ActivationBatch,
    "model_update": core.ModelUpdate,
    "failed": core.Failed,
    "assignment": core.Assignment,
    "turn_on": core.TurnOn,
    "hand_in": core.HandIn,
    "gradient_batch": core.GradientBatch,
    "global_model": core.GlobalModel,
    "stop": core.Stop,
}
_NAMES: Final = {cls: name for name, cls in _KINDS.items()}
_LANES: Final = {cls: BULK if issubclass(cls, core.BULK) else URGENT for cls in _NAMES}
_NESTED: Final = {"data": Payload, "program": core.ProgramSpec}
_OPTIONAL: Final = frozenset({"pending"})
_UNSENT: Final = frozenset({"value"})  # a payload's tensors: they come after the head


def lane_of(message: Message) -> int:
    return _LANES[type(message)]


# ---- sending -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message on its way. Its tensors are read as its chunks are asked for."""

    lane: int
    head: wire.Frame
    nbytes: int  # of its tensors
    tensors: dict[str, Tensor]  # that are not in the head
    held: int  # bytes of memory while it waits, about

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
        for parts in slices(map(bytes_of, self.tensors.values()), size):
            yield Chunk(self.lane, parts)


def encode(message: Message, *, inline: int = 0) -> Outgoing:
    """``inline``: bytes of tensors that may be in the head."""
    return _credit() if isinstance(message, core.TurnOn) else _encode(message, inline)


@cache
def _credit() -> Outgoing:
    """All of them are the same, and every batch is answered by one."""
    return _encode(core.TurnOn(), 0)


def _encode(message: Message, inline: int) -> Outgoing:
    payload: Payload | None = getattr(message, "data", None)
    tensors = cast("dict[str, Tensor] | None", payload.value if payload else None)
    nbytes = sum(tensor.nbytes for tensor in tensors.values()) if tensors else 0
    if payload and payload.nbytes != nbytes:
        raise InvariantBroken(f"payload {payload.id} has {nbytes} bytes, not {payload.nbytes}")
    head = wire.Head(lane=lane_of(message), header=b"" if tensors is None else header_of(tensors))
    _write(message, getattr(head, _NAMES[type(message)]))
    held = nbytes + head.ByteSize() + _OBJECT_BYTES
    if tensors and nbytes <= inline:
        head.data = b"".join(map(bytes_of, tensors.values()))
        tensors = None
    return Outgoing(head.lane, wire.Frame(head=head), nbytes, tensors or {}, held)


def _write(value: object, into: object) -> None:
    into.SetInParent()  # type: ignore[attr-defined]  # says which message, even an empty one
    for field in fields(value):  # type: ignore[arg-type]
        item = getattr(value, field.name)
        if field.name in _NESTED:
            _write(item, getattr(into, field.name))
        elif isinstance(item, str):  # an error may quote what is no text, and must get through
            setattr(into, field.name, item.encode(errors="replace").decode())
        elif item is not None and field.name not in _UNSENT:
            setattr(into, field.name, item)


# ---- receiving -----------------------------------------------------------------------------------


MessageLimit = Callable[[type[Message]], int]


class Assembler:
    """Puts the messages of one session together again, each lane by itself."""

    def __init__(
        self,
        *,
        limit: int | MessageLimit,
        pinned: bool = False,
        later: bool = False,
        memory: Memory | None = None,
    ) -> None:
        """``limit``: of one message's tensors, in bytes; of all messages, or of each kind.

        ``later``: the tensors of a message that has come are to be filled by the caller.
        ``memory``: where tensors are put; None: wherever there is room.
        """
        self._limit = limit if callable(limit) else lambda _: limit
        # Bytes of the largest batch within the limit so far: a plan's are all of one size, their
        # limit stays, and to ask for it takes longer than what else is checked here.
        self._taken = -1
        self._pinned = pinned  # memory that a GPU can copy from by itself
        self._later = later
        self._memory = memory
        self._elsewhere = pinned or later or memory is not None
        self._unfilled: Filling | None = None
        self._begun: dict[int, tuple[Message, Filling]] = {}

    def feed(self, frame: Frame) -> Message | None:
        """The message that this frame completes, if it does."""
        if isinstance(frame, Chunk):
            return self._go_on(frame)
        if not frame.HasField("head"):
            _refuse(f"a frame that is part of no message: {frame.WhichOneof('kind')}")
        return self._begin(frame.head)

    def _begin(self, head: wire.Head) -> Message | None:
        kind = head.WhichOneof("message")
        if kind is None:
            _refuse("a message of an unknown kind")
        if kind == "activation_batch":  # nearly all that comes
            message: Message = _read_batch(head.activation_batch)
        else:
            message = cast(Message, _read(_KINDS[kind], getattr(head, kind)))
            _check(message)
        lane = lane_of(message)
        if head.lane != lane or lane in self._begun:
            _refuse(f"{kind} on lane {head.lane}, where it has no place now")
        payload: Payload | None = getattr(message, "data", None)
        header, inline = head.header, head.data  # each is a copy
        if not header:
            if inline or (payload and payload.nbytes):
                _refuse(f"{payload} without a header")
            return message
        is_batch = kind == "activation_batch"
        if payload is None or not is_batch or payload.nbytes > self._taken:
            limit = self._limit(type(message))
            if payload is None or payload.nbytes > limit:
                _refuse(f"{payload} with tensors (limit {limit} bytes)")
            self._taken = payload.nbytes if is_batch else self._taken
        if inline and not self._elsewhere:
            tensors = read_together(header, inline, limit=payload.nbytes)
            if len(inline) != payload.nbytes:
                _refuse(f"{payload} with {len(inline)} bytes of tensors")
            return _with_tensors(message, payload, tensors)
        filling = self._filling(header, payload)
        message = _with_tensors(message, payload, filling.tensors)
        if inline:
            filling.accept(memoryview(inline))
            if filling.missing:
                _refuse(f"a head with {filling.missing} bytes fewer than it says")
            self._unfilled = filling if self._later else None
        elif filling.missing:
            self._begun[lane] = message, filling
            return None
        return message

    def take_unfilled(self) -> Filling | None:
        """What the message that came last is still to be filled with."""
        filling, self._unfilled = self._unfilled, None
        return filling

    @property
    def waits(self) -> bool:
        """A message has begun, and has not come to its end."""
        return bool(self._begun)

    def _filling(self, header: bytes, payload: Payload) -> Filling:
        """Room for the tensors, once header and payload agree on them."""
        filling = Filling(
            header,
            limit=payload.nbytes,
            pinned=self._pinned,
            later=self._later,
            memory=self._memory,
        )
        if filling.nbytes != payload.nbytes:
            _refuse(f"{payload} with {filling.nbytes} bytes of tensors")
        return filling

    def _go_on(self, chunk: Chunk) -> Message | None:
        if chunk.lane not in self._begun or not chunk.nbytes:
            _refuse("a chunk that belongs to no message")
        message, filling = self._begun[chunk.lane]
        for part in chunk.parts:
            filling.accept(part)
        if filling.missing:
            return None
        del self._begun[chunk.lane]
        self._unfilled = filling if self._later else None
        return message


def _with_tensors(message: Message, payload: Payload, tensors: dict[str, Tensor]) -> Message:
    data = Payload(payload.id, payload.nbytes, tensors)
    if isinstance(message, core.ActivationBatch):  # nearly all of them
        return core.ActivationBatch(message.seq, data, message.part, message.parts, message.cut)
    kind: type = type(message)
    given = [data if name == "data" else getattr(message, name) for name in _sent_fields(kind)]
    return cast(Message, kind(*given))


def _read_batch(written: wire.ActivationBatch) -> core.ActivationBatch:
    """As `_read` and `_check` do, in one look; what is odd is for them to name."""
    data = Payload(PayloadId(written.data.id), written.data.nbytes)
    seq, part, parts, cut = written.seq, written.part, written.parts, written.cut
    batch = core.ActivationBatch(seq, data, part, parts, cut)
    counted = 0 <= seq <= MOST and 0 <= part < parts <= MOST and 0 <= cut <= MOST
    if not (counted and data.nbytes >= 0 and _is_identifier(data.id)):
        _check(batch)
    return batch


def _read(cls: type, written: object) -> object:
    found: list[object] = []
    for name in _sent_fields(cls):
        if name in _NESTED:
            found.append(_read(_NESTED[name], getattr(written, name)))
        elif name in _OPTIONAL and not written.HasField(name):  # type: ignore[attr-defined]
            found.append(None)
        else:
            found.append(getattr(written, name))
    built: object = cls(*found)
    return built


@cache
def _sent_fields(cls: type) -> tuple[str, ...]:
    """In order; what is not sent comes last."""
    return tuple(field.name for field in fields(cls) if field.name not in _UNSENT)


def _check(message: Message) -> None:
    """Refuses what no honest peer sends; what it means now is for the cores to judge."""
    check_figures(message)
    match message:
        case core.Join(pending=pending):
            fine = pending is None or _is_identifier(pending)
        case core.ActivationBatch(_, data, part, parts):
            fine = part < parts and _is_payload(data)
        case core.GradientBatch(data=data) | core.ModelUpdate(data=data):
            fine = _is_payload(data)
        case core.GlobalModel(data=data):
            fine = _is_payload(data)
        case core.Assignment(plan, program):
            check_figures(program)
            fine = len(plan) <= MAX_TEXT and _is_identifier(program.kind)
        case core.Failed(text) | core.Stop(text):
            fine = len(text) <= MOST_TEXT
        case core.TurnOn() | core.HandIn():
            fine = True
        case _:
            assert_never(message)
    if not fine:
        _refuse(f"impossible figures: {str(message)[:MAX_SHOWN]}")


def _is_payload(payload: Payload) -> bool:
    return payload.nbytes >= 0 and _is_identifier(payload.id)


def _is_identifier(text: str) -> bool:
    return 1 <= len(text) <= MAX_IDENTIFIER and text.isprintable()


def _refuse(what: str) -> NoReturn:
    raise ProtocolViolation(f"the peer sent {what}")
