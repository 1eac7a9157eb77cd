"""Memory that two processes share: what is written is read, and every block comes back."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedoptima.runtime.gateway.arena import Arena, Block, create
from tests.support.network import DEADLINE

TENSORS = {
    "a": torch.arange(6, dtype=torch.int64).reshape(2, 3),
    "b": torch.tensor(1.5, dtype=torch.float64),
    "c": torch.zeros(0, 4),
    "d": torch.tensor([True, False, True]),
    "e": torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).bfloat16(),
}


@pytest.fixture
def descriptor() -> int:
    return create(1 << 20)


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name])
        for name in left
    )


def test_what_one_process_writes_another_reads_where_it_is(descriptor: int) -> None:
    writer = Arena(descriptor)
    stored = writer.put(TENSORS)
    assert stored is not None
    # Not forked: locks of threads that other tests have left would stay locked in a fork.
    reading = f"import {__name__} as here; here.read_from_input({descriptor})"
    subprocess.run(
        [sys.executable, "-c", reading],
        input=pickle.dumps(stored),
        pass_fds=[descriptor],
        timeout=DEADLINE,
        check=True,
    )


def read_from_input(descriptor: int) -> None:
    stored = pickle.load(sys.stdin.buffer)
    assert equal(Arena(descriptor).read(stored, lambda _: None), TENSORS)


def test_a_block_is_free_when_its_last_tensor_is_gone(descriptor: int) -> None:
    writer, reader = Arena(descriptor), Arena(descriptor)
    stored = writer.put(TENSORS)
    assert stored is not None
    freed: list[Block] = []
    tensors = reader.read(stored, freed.append)
    kept = tensors["a"][0]  # a part of one is enough
    del tensors
    assert not freed
    del kept
    assert freed == [stored.block]
    writer.give_back(freed[0])
    assert writer.taken == 0


def test_tensors_that_are_not_handed_on_give_their_block_back(descriptor: int) -> None:
    arena = Arena(descriptor)
    placed = arena.place({"a": ((4, 4), torch.float32)})
    assert placed is not None
    assert arena.taken
    del placed
    assert arena.taken == 0
    placed = arena.place({"a": ((4, 4), torch.float32)})
    assert placed is not None
    placed.hand_on()
    del placed
    assert arena.taken


def test_without_room_nothing_is_placed(descriptor: int) -> None:
    arena = Arena(descriptor)
    assert arena.put({"a": torch.zeros(1 << 20, dtype=torch.uint8)}) is not None
    assert arena.put({"a": torch.zeros(1)}) is None


@given(st.lists(st.integers(0, 60_000), max_size=60), st.randoms())
def test_blocks_never_overlap_and_all_room_comes_back(sizes: list[int], random: Random) -> None:
    descriptor = create(1 << 20)
    arena, held = Arena(descriptor), []
    os.close(descriptor)
    for size in sizes:
        stored = arena.put({"a": torch.zeros(size, dtype=torch.uint8)})
        if held and (stored is None or random.random() < 0.4):
            arena.give_back(held.pop(random.randrange(len(held))))
        if stored is not None:
            held.append(stored.block)
        ordered = sorted(held, key=lambda block: block.begin)
        assert all(a.end <= b.begin for a, b in pairwise(ordered))
    for block in held:
        arena.give_back(block)
        arena.give_back(block)  # twice is not wrong
    assert arena.taken == 0
    assert arena.put({"a": torch.zeros(1 << 20, dtype=torch.uint8)}) is not None
