"""Tensors travel as safetensors, bit for bit, and a header that lies is found out in time."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedoptima.core.errors import ConfigError, ProtocolViolation
from fedoptima.runtime.wire.tensors import (
    DTYPES,
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    Filling,
    bytes_of,
    header_of,
    read_together,
    slices,
)

LIMIT = 1 << 20


def noise(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Any bits at all, NaNs among them; for truth values, zeros and ones."""
    generator = torch.Generator().manual_seed(seed)
    top = 2 if dtype is torch.bool else 256
    count = torch.Size(shape).numel() * dtype.itemsize
    data = torch.randint(0, top, (count,), dtype=torch.uint8, generator=generator)
    return data.view(dtype).reshape(shape)


def bits(tensor: Tensor) -> bytes:
    return bytes(bytes_of(tensor))


def file_of(tensors: dict[str, Tensor]) -> bytes:
    return header_of(tensors) + b"".join(bytes_of(tensor) for tensor in tensors.values())


def split(file: bytes) -> tuple[bytes, bytes]:
    end = 8 + int.from_bytes(file[:8], "little")
    return file[:end], file[end:]


def read(file: bytes, *, limit: int = LIMIT, size: int = 7) -> dict[str, Tensor]:
    header, data = split(file)
    filling = Filling(header, limit=limit)
    for (part,) in slices([memoryview(data)], size):
        filling.accept(part)
    assert filling.missing == 0
    together = read_together(header, data, limit=limit)
    assert_same(together, filling.tensors)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in together.values() if tensor.nbytes)
    return filling.tensors


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype is tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert bits(found[name]) == bits(tensor), name


# ---- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_type_travels_bit_for_bit_and_is_what_safetensors_reads_and_writes(
    dtype: torch.dtype,
) -> None:
    tensors = {
        "matrix": noise((3, 5), dtype),
        "one": noise((), dtype),
        "none": noise((4, 0), dtype),
    }
    file = file_of(tensors)
    assert_same(read(file), tensors)
    assert_same(safetensors.torch.load(file), tensors)
    assert_same(read(safetensors.torch.save(tensors)), tensors)


def test_a_file_with_metadata_is_read() -> None:
    tensors = {"x": torch.ones(3)}
    assert_same(read(safetensors.torch.save(tensors, {"format": "pt"})), tensors)


def test_no_tensors_are_a_file_as_well() -> None:
    assert read(file_of({})) == {}
    assert safetensors.torch.load(file_of({})) == {}


def test_tensors_arrive_in_the_order_in_which_they_were_sent() -> None:
    tensors = {name: torch.ones(2) for name in ("z", "a", "m")}
    assert list(read(file_of(tensors))) == ["z", "a", "m"]


@pytest.mark.parametrize("name", ["a", "ab", "abc", "abcd"])
def test_the_data_of_a_file_is_aligned(name: str) -> None:
    assert len(header_of({name: torch.ones(2)})) % 8 == 0


def test_tensors_that_lie_crosswise_in_memory_arrive_in_order() -> None:
    grid = torch.arange(24.0).reshape(4, 6)
    complex_grid = torch.complex(grid, grid)
    tensors = {"turned": grid.t(), "every second": grid[:, ::2], "conjugate": complex_grid.conj()}
    found = read(file_of(tensors))
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_tensor_in_order_is_sent_from_its_own_memory() -> None:
    tensor = torch.zeros(4, requires_grad=True)
    view = bytes_of(tensor)
    with torch.no_grad():
        tensor.fill_(1.0)
    assert view == bits(torch.ones(4))


def test_received_tensors_are_aligned_as_torch_aligns_its_own() -> None:
    found = read(file_of({"a": torch.ones(1), "b": torch.ones(5), "c": torch.ones(3)}))
    assert [tensor.data_ptr() % 64 for tensor in found.values()] == [0, 0, 0]


@given(
    parts=st.lists(st.binary(max_size=40), max_size=8).map(
        lambda all_: list(map(memoryview, all_))
    ),
    size=st.integers(1, 50),
)
def test_slices_are_full_but_for_the_last_and_lose_nothing(
    parts: list[memoryview], size: int
) -> None:
    portions = [b"".join(portion) for portion in slices(parts, size)]
    assert b"".join(portions) == b"".join(parts)
    assert all(len(portion) == size for portion in portions[:-1])
    assert all(portions)


UNSENDABLE = {
    "a type of its own": {"x": torch.ones(2, dtype=torch.complex128)},
    "the format's own key": {"__metadata__": torch.ones(2)},
    "a name with a bell": {"a\x07": torch.ones(2)},
    "a name without end": {"a" * 501: torch.ones(2)},
    "too many": dict.fromkeys(map(str, range(MAX_TENSORS + 1)), torch.ones(0)),
    "too many words": dict.fromkeys((f"{i:0500}" for i in range(2000)), torch.ones(0)),
}


@pytest.mark.parametrize("tensors", UNSENDABLE.values(), ids=UNSENDABLE)
def test_what_the_other_side_would_refuse_is_not_sent(tensors: dict[str, Tensor]) -> None:
    with pytest.raises(ConfigError, match="cannot be sent"):
        header_of(tensors)


# ---- lies ----------------------------------------------------------------------------------------


def header(entries: object) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def entry(
    begin: object = 0, end: object = 8, shape: object = (2,), dtype: object = "F32", **more: object
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


WRONG: dict[str, bytes] = {
    "nothing at all": b"",
    "half a length": b"\x02\0\0",
    "longer than it says": header({}) + b" ",
    "shorter than it says": header({"a": entry()})[:-1],
    "too long": header(b"{}" + b" " * MAX_HEADER_BYTES),
    "no JSON": header(b"{]"),
    "no text": header(b"\xff\xfe{}"),
    "no object": header([1, 2]),
    "nested without end": header(b"[" * 200_000),
    "a number without end": header(b'{"a": 1' + b"0" * 10_000 + b"}"),
    "a name twice": header(b'{"a": %b, "a": %b}' % ((json.dumps(entry()).encode(),) * 2)),
    "metadata that is a list": header({"__metadata__": []}),
    "metadata of numbers": header({"__metadata__": {"a": 1}}),
    "too many": header({f"{i}": entry(0, 0, (0,)) for i in range(MAX_TENSORS + 1)}),
    "an entry that is a number": header({"a": 1}),
    "an entry without a shape": header({"a": {"dtype": "F32", "data_offsets": [0, 8]}}),
    "an entry with a secret": header({"a": entry(secret=1)}),
    "three offsets": header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}),
    "an unknown type": header({"a": entry(dtype="F31")}),
    "a type that is a list": header({"a": entry(dtype=["F32"])}),
    "a shape that is a number": header({"a": entry(shape=2)}),
    "a negative shape": header({"a": entry(shape=(-1, -2))}),
    "half a shape": header({"a": entry(shape=(2.0,))}),
    "a true shape": header({"a": entry(0, 4, (True,))}),
    "a shape of nothing": header({"a": entry(shape=(None,))}),
    "a shape beyond all numbers": header({"a": entry(0, 0, (0, 1 << 62, 1 << 62))}),
    "too many dimensions": header({"a": entry(0, 4, (1,) * 65)}),
    "offsets that are text": header({"a": entry("0", "8")}),
    "an end before the beginning": header({"a": entry(8, 0)}),
    "a negative beginning": header({"a": entry(-8, 0)}),
    "more bytes than the shape": header({"a": entry(0, 12)}),
    "a hole": header({"a": entry(), "b": entry(16, 24)}),
    "a beginning after the start": header({"a": entry(8, 16)}),
    "an overlap": header({"a": entry(), "b": entry(4, 12)}),
    "the same place twice": header({"a": entry(), "b": entry()}),
    "above the limit": header({"a": entry(0, LIMIT + 4, (LIMIT // 4 + 1,))}),
    "far above the limit": header({"a": entry(0, 1 << 50, (1 << 24, 1 << 24))}),
    "above the limit together": header(
        {
            "a": entry(0, LIMIT, (LIMIT // 4,)),
            "b": entry(LIMIT, LIMIT + 4, (1,)),
        }
    ),
    "a name with a bell": header({"a\x07": entry()}),
    "a name with half a letter": header(b'{"\\ud800": %b}' % json.dumps(entry()).encode()),
    "a name without end": header({"a" * 501: entry()}),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_header_is_refused(wrong: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        Filling(wrong, limit=LIMIT)
    with pytest.raises(ProtocolViolation):
        read_together(wrong, bytes(8), limit=LIMIT)


def test_a_header_like_the_wrong_ones_but_right_is_accepted() -> None:
    right = header({"b": entry(8, 16), "__metadata__": {"a": "b"}, "a": entry()})
    assert list(Filling(right, limit=16).tensors) == ["a", "b"]


def test_more_bytes_than_promised_are_refused() -> None:
    filling = Filling(header({"a": entry()}), limit=LIMIT)
    filling.accept(memoryview(bytes(6)))
    with pytest.raises(ProtocolViolation, match="more than the header says"):
        filling.accept(memoryview(bytes(3)))


@pytest.mark.parametrize("nbytes", [0, 7, 9])
def test_another_number_of_bytes_than_promised_is_refused(nbytes: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"{nbytes} bytes, and 8 in the header"):
        read_together(header({"a": entry()}), bytes(nbytes), limit=LIMIT)
    with pytest.raises(ProtocolViolation, match="8 bytes are too many"):
        read_together(header({"a": entry()}), bytes(8), limit=7)


def test_a_truth_value_of_two_is_refused() -> None:
    filling = Filling(header({"a": entry(0, 3, (3,), "BOOL")}), limit=LIMIT)
    filling.accept(memoryview(b"\0\1"))
    with pytest.raises(ProtocolViolation, match="neither true nor false"):
        filling.accept(memoryview(b"\2"))
    with pytest.raises(ProtocolViolation, match="neither true nor false"):
        read_together(header({"a": entry(0, 3, (3,), "BOOL")}), b"\0\1\2", limit=LIMIT)


def test_bytes_can_be_put_into_tensors_later_and_are_checked_then() -> None:
    whole = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.tensor([True, False])}
    head, data = split(file_of(whole))
    filling = Filling(head, limit=LIMIT, later=True)
    tensors = filling.tensors
    for (part,) in slices([memoryview(data)], 7):
        filling.accept(part)
    assert (filling.missing, tensors) == (0, {})
    filling.fill()
    assert filling.tensors is tensors
    assert_same(tensors, whole)
    wrong = Filling(head, limit=LIMIT, later=True)
    wrong.accept(memoryview(data[:-1] + b"\2"))
    with pytest.raises(ProtocolViolation, match="neither true nor false"):
        wrong.fill()


# ---- whatever comes ------------------------------------------------------------------------------

VALID = header_of(
    {"activations.0": torch.ones(3, 4), "labels": torch.arange(3), "share": torch.tensor(0.5)}
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
NUMBERS = st.integers(-2, 40) | st.sampled_from([1 << 31, 1 << 62, 1 << 63, 1 << 64])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I64", "BOOL", "F8_E4M3", "C64", "X"]),
        "shape": st.lists(NUMBERS, max_size=4),
        "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2),
    }
)


def try_to_fill(raw: bytes, limit: int) -> None:
    """Either refused, or within the limit and ready to be filled."""
    try:
        filling = Filling(raw, limit=limit)
    except ProtocolViolation:
        return
    assert sum(tensor.nbytes for tensor in filling.tensors.values()) == filling.nbytes <= limit
    filling.accept(memoryview(bytes(filling.nbytes)))
    assert filling.missing == 0


@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=4
    ),
    limit=st.integers(0, 200),
)
def test_a_header_with_changed_bytes_is_refused_or_kept_within_the_limit(
    changes: list[tuple[int, int]], limit: int
) -> None:
    raw = bytearray(VALID)
    for place, value in changes:
        raw[place] = value
    try_to_fill(bytes(raw), limit)


@given(raw=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_kept_within_the_limit(raw: bytes) -> None:
    try_to_fill(raw, LIMIT)
    try_to_fill(header(raw), LIMIT)


@given(entries=JSON | st.dictionaries(st.text(max_size=3), JSON | ENTRIES, max_size=3))
def test_arbitrary_headers_are_refused_or_kept_within_the_limit(entries: object) -> None:
    try_to_fill(header(entries), LIMIT)
