"""Named tensors as the bytes of a safetensors file, and back, without holding the file in memory.

Sending: the header is made from names, types and shapes alone; a tensor's bytes are looked at only
when its turn comes, so a model on its way to a hundred devices exists once. Receiving: a header is
believed only after every line of it has been checked against the limits; only then is memory taken
(64-byte aligned, as torch aligns its own: results do not depend on the way a tensor came), and the
bytes are copied into it once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError, ProtocolViolation

MAX_HEADER_BYTES: Final = 1 << 20
MAX_TENSORS: Final = 10_000
MAX_NAME: Final = 500
MAX_DIMENSIONS: Final = 32
MAX_ELEMENTS: Final = 1 << 48  # also of a shape with a zero in it: torch multiplies the others

_ALIGNED: Final = 64  # bytes
_SMALL_HEADER: Final = 8 << 10  # bytes
_HEADERS_KEPT: Final = 64  # small ones: a device's batches all have the same
_LENGTH_BYTES: Final = 8  # a file begins with the length of its header
_METADATA: Final = "__metadata__"  # a key of the format, not a tensor

DTYPES: Final = {  # the format's names for what a model or an activation may be made of
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


# ---- sending -------------------------------------------------------------------------------------


def header_of(tensors: Mapping[str, Tensor]) -> bytes:
    """The file up to its data: the tensors lie in it in the order of the mapping."""
    entries: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise ConfigError(
                f"tensor {name!r} of type {tensor.dtype} cannot be sent: the wire format has no "
                f"place for it (types: {', '.join(DTYPES)})"
            )
        if name == _METADATA or not _is_name(name):
            raise ConfigError(
                f"tensor {name[:MAX_NAME]!r} cannot be sent: give it a printable name of at most "
                f"{MAX_NAME} characters"
            )
        begin, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants its data aligned
    if len(tensors) > MAX_TENSORS or len(text) > MAX_HEADER_BYTES:
        raise ConfigError(
            f"{len(tensors)} tensors with {len(text)} bytes of names and shapes cannot be sent: "
            f"at most {MAX_TENSORS} with {MAX_HEADER_BYTES}"
        )
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's own memory where it lies in order on the CPU, otherwise a copy's."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def slices(parts: Iterable[memoryview], size: int) -> Iterator[tuple[memoryview, ...]]:
    """The parts' bytes in portions of ``size``: many small tensors travel together."""
    portion: list[memoryview] = []
    room = size
    for part in parts:
        while part:
            portion.append(part[:room])
            room -= len(portion[-1])
            part = part[len(portion[-1]) :]
            if not room:
                yield tuple(portion)
                portion, room = [], size
    if portion:
        yield tuple(portion)


# ---- receiving -----------------------------------------------------------------------------------


Forms: TypeAlias = Mapping[str, tuple[Sequence[int], torch.dtype]]
# Gives tensors of these forms a place, of its own choice; None: it has no room.
Memory: TypeAlias = Callable[[Forms], "dict[str, Tensor] | None"]


_NO_ROOM: Final = np.empty(0, np.uint8)


class _Entry(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: list[int]
    begin: int
    end: int


class Filling:
    """Tensors that a header has promised and whose bytes are still coming.

    ``later``: bytes that come are kept as they are until `fill`, which makes the tensors then,
    and not in ``memory``, which is for tensors that are filled at once.
    """

    def __init__(
        self,
        header: bytes,
        *,
        limit: int,
        pinned: bool = False,
        later: bool = False,
        memory: Memory | None = None,
    ) -> None:
        entries = _layout_of(header).entries
        self.nbytes = entries[-1].end if entries else 0
        if self.nbytes > limit:
            _refuse(f"{self.nbytes} bytes are too many (limit {limit})")
        self.tensors: dict[str, Tensor] = {}
        self.missing = self.nbytes
        self._pinned = pinned
        self._memory = None if later else memory
        self._entries = entries
        self._room = _NO_ROOM
        self._later = later and bool(self.nbytes)
        self._kept: list[memoryview] = []
        if not self._later:
            self._allocate()

    def accept(self, data: memoryview) -> None:
        if len(data) > self.missing:
            _refuse(f"{len(data) - self.missing} bytes more than the header says")
        self.missing -= len(data)
        self._kept.append(data)
        if not self._later:
            self.fill()

    def fill(self) -> None:
        """Put the bytes that have come into the tensors; on any thread."""
        if not self.tensors:
            self._allocate()
        while self._kept:
            self._write(self._kept.pop(0))
        if not self.missing:
            _check_truths(self.tensors)

    def _allocate(self) -> None:
        forms = {entry.name: (entry.shape, entry.dtype) for entry in self._entries}
        placed = self._memory(forms) if self._memory is not None else None
        if placed is not None:
            self.tensors = placed
        else:
            for name, (shape, dtype) in forms.items():
                self.tensors[name] = torch.empty(shape, dtype=dtype, pin_memory=self._pinned)
        rooms = (bytes_of(tensor) for tensor in self.tensors.values() if tensor.nbytes)
        self._open = iter([np.asarray(room) for room in rooms])

    def _write(self, data: memoryview) -> None:
        came = np.frombuffer(data, np.uint8)
        while len(came):
            if not len(self._room):
                self._room = next(self._open)
            count = min(len(self._room), len(came))
            # Unlike an assignment of slices, this lets other threads run meanwhile.
            np.copyto(self._room[:count], came[:count])
            self._room, came = self._room[count:], came[count:]


class _Layout(NamedTuple):
    """Of tensors that share one piece of memory."""

    entries: tuple[_Entry, ...]
    places: list[int]  # where each begins: where a tensor of its own would be aligned to
    nbytes: int  # of the memory
    gapless: bool  # the data lie in it as they come
    truths: bool  # some are bools

    @staticmethod
    def of(entries: tuple[_Entry, ...]) -> _Layout:
        places, end = list[int](), 0
        for entry in entries:
            places.append(end)
            end += -(-(entry.end - entry.begin) // _ALIGNED) * _ALIGNED
        gapless = all(e.begin == place for e, place in zip(entries, places, strict=True))
        truths = any(entry.dtype is torch.bool for entry in entries)
        return _Layout(entries, places, end, gapless, truths)


def read_together(header: bytes, data: bytes, *, limit: int) -> dict[str, Tensor]:
    """A small message's tensors, whose bytes are all there, in one piece of memory: every call of
    torch takes longer than to copy them."""
    layout = _layout_of(header)
    entries = layout.entries
    nbytes = entries[-1].end if entries else 0
    if nbytes > limit:
        _refuse(f"{nbytes} bytes are too many (limit {limit})")
    if len(data) != nbytes:
        _refuse(f"{len(data)} bytes, and {nbytes} in the header")
    room = bytearray(layout.nbytes + _ALIGNED)  # torch's own memory would be slower to get at
    start = -torch.frombuffer(room, dtype=torch.uint8).data_ptr() % _ALIGNED
    if layout.gapless:
        room[start : start + nbytes] = data
    tensors: dict[str, Tensor] = {}
    for (name, dtype, shape, begin, end), offset in zip(entries, layout.places, strict=True):
        place = start + offset
        if begin == end:
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        if not layout.gapless:
            room[place : place + end - begin] = data[begin:end]
        count = (end - begin) // dtype.itemsize
        flat = torch.frombuffer(room, dtype=dtype, count=count, offset=place)
        tensors[name] = flat if len(shape) == 1 else flat.view(shape)
    if layout.truths:
        _check_truths(tensors)
    return tensors


def _layout_of(header: bytes) -> _Layout:
    return _read_small(header) if len(header) <= _SMALL_HEADER else _Layout.of(_read_header(header))


def _read_header(header: bytes) -> tuple[_Entry, ...]:
    """What the header describes, in the order of the data, if all of it is in order."""
    if not _LENGTH_BYTES <= len(header) <= _LENGTH_BYTES + MAX_HEADER_BYTES:
        _refuse(f"a header of {len(header)} bytes")
    if int.from_bytes(header[:_LENGTH_BYTES], "little") != len(header) - _LENGTH_BYTES:
        _refuse("its header has another length than it says")
    try:
        described = json.loads(header[_LENGTH_BYTES:], object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation(f"tensors refused: the header is no JSON ({error})") from None
    if not isinstance(described, dict):
        _refuse("the header is no JSON object")
    metadata = described.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _refuse("its metadata is not text")
    if len(described) > MAX_TENSORS:
        _refuse(f"{len(described)} of them (limit {MAX_TENSORS})")
    entries = [_read_entry(name, described[name]) for name in described]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    end = 0
    for entry in entries:
        if entry.begin != end:
            _refuse(f"{entry.name!r} begins at {entry.begin}, not at {end}")
        end = entry.end
    return tuple(entries)


@lru_cache(_HEADERS_KEPT)
def _read_small(header: bytes) -> _Layout:
    return _Layout.of(_read_header(header))


def _read_entry(name: str, described: object) -> _Entry:
    if not _is_name(name):
        _refuse(f"a tensor called {name[:MAX_NAME]!r}")
    match described:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end], **more}:
            if more or dtype not in DTYPES:
                _refuse(f"{name!r} is of an unknown kind")
        case _:
            _refuse(f"{name!r} is described wrongly")
    numbers = [*shape, begin, end]
    if any(type(number) is not int or number < 0 for number in numbers):
        _refuse(f"{name!r} has a shape or a place that is not a number")
    if len(shape) > MAX_DIMENSIONS or math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        _refuse(f"{name!r} has an impossible shape")
    if math.prod(shape) * DTYPES[dtype].itemsize != end - begin:
        _refuse(f"{name!r} of shape {shape} does not fit {end - begin} bytes")
    return _Entry(name, DTYPES[dtype], shape, begin, end)


def _check_truths(tensors: Mapping[str, Tensor]) -> None:
    # A bool that is neither 0 nor 1 is undefined behaviour inside torch.
    for name, tensor in tensors.items():
        if tensor.dtype is torch.bool and (tensor.view(torch.uint8) > 1).any():
            _refuse(f"{name!r} is neither true nor false somewhere")


def _is_name(name: str) -> bool:
    return len(name) <= MAX_NAME and name.isprintable()


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _refuse(reason: str) -> NoReturn:
    raise ProtocolViolation(f"tensors refused: {reason}")
