"""Named tensors in one piece of memory are what they are one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedoptima.engine.aggregator import merge
from fedoptima.engine.flat import FlatTensors, in_one_piece, layout_of
from fedoptima.engine.payloads import copy_of


def some_tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "first": torch.randn(5, 7, generator=generator),
        "steps": torch.tensor(seed),
        "large": torch.randn(40_000, generator=generator),
        "double": torch.randn(3, dtype=torch.float64, generator=generator),
        "none": torch.empty(0, 4),
        "last": torch.randn(1, generator=generator),
    }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_tensors_in_one_piece_keep_names_order_shapes_types_and_values() -> None:
    tensors = some_tensors()
    flat = in_one_piece(tensors)
    assert list(flat) == list(tensors)
    assert same(flat, tensors)
    assert all(tensor.is_contiguous() for tensor in flat.values())


def test_each_tensor_is_aligned_as_torch_aligns_it() -> None:
    flat = in_one_piece(some_tensors())
    assert all(tensor.data_ptr() % 64 == 0 for tensor in flat.values() if tensor.numel())


def test_a_copy_of_tensors_in_one_piece_is_in_another_piece() -> None:
    flat = in_one_piece(some_tensors())
    copy = copy_of(flat)
    flat["first"].zero_()
    assert isinstance(copy, FlatTensors)
    assert same(copy, some_tensors())


def test_equal_forms_have_one_layout_and_others_another() -> None:
    tensors = some_tensors()
    assert layout_of(in_one_piece(tensors)) is layout_of(some_tensors(1))
    assert layout_of({**tensors, "last": torch.zeros(2)}) is not layout_of(tensors)


def test_what_is_between_two_tensors_is_zero_also_in_memory_that_was_used() -> None:
    layout = layout_of(some_tensors())
    flat = FlatTensors(layout, torch.full((layout.nbytes,), 255, dtype=torch.uint8))
    flat.fill(some_tensors())
    assert torch.equal(flat.memory, in_one_piece(some_tensors()).memory)


def test_filling_takes_names_that_begin_with_a_prefix() -> None:
    flat = in_one_piece(some_tensors(1))
    flat.fill({f"model.{name}": tensor for name, tensor in some_tensors().items()}, "model.")
    assert same(flat, some_tensors())


def test_tensors_in_one_piece_are_merged_to_the_same_bits() -> None:
    base = some_tensors()
    parts = [(0.3, some_tensors(1)), (0.1, some_tensors(2)), (1 / 3, some_tensors(3))]
    flat = [(weight, in_one_piece(part)) for weight, part in parts]
    for keep in (0.0, 0.27):
        for few in (0, 1, 3):
            merged = merge(in_one_piece(base), keep, flat[:few])
            assert isinstance(merged, FlatTensors)
            assert same(merged, merge(base, keep, parts[:few])), (keep, few)


def test_several_threads_merge_many_updates_to_the_same_bits() -> None:
    base, parts = some_tensors(), [(1 / 9, some_tensors(number)) for number in range(1, 10)]
    flat = [(weight, in_one_piece(part)) for weight, part in parts]
    for keep in (0.0, 0.27):
        merged = merge(in_one_piece(base), keep, flat, threads=3)
        assert same(merged, merge(base, keep, parts)), keep


def test_updates_in_pieces_of_another_form_are_merged_one_by_one() -> None:
    base, part = in_one_piece(some_tensors()), some_tensors(1)
    other_order = dict(reversed(part.items()))
    expected = merge(dict(base), 0.5, [(0.5, part)])
    assert same(merge(base, 0.5, [(0.5, in_one_piece(other_order))]), expected)
    assert same(merge(base, 0.5, [(0.5, part)]), expected)
