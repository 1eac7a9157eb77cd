"""What a process has before its work begins is not looked at again and again."""

from __future__ import annotations

import asyncio
import gc
import weakref

from fedoptima.runtime.garbage import long_lived
from fedoptima.runtime.native_memory import kept_small


class Node:
    def __init__(self) -> None:
        self.itself = self  # a cycle: only the collector frees it


def test_what_was_there_is_left_alone_and_what_comes_is_collected() -> None:
    before = Node()
    old = weakref.ref(before)
    with long_lived():
        later = Node()
        new = weakref.ref(later)
        del before, later
        gc.collect()
        assert old() is not None
        assert new() is None
    gc.collect()
    assert old() is None


def test_a_server_leaves_what_it_is_made_of_alone() -> None:
    async def run() -> int:
        async with kept_small():
            return gc.get_freeze_count()

    assert asyncio.run(run()) > 0
    assert gc.get_freeze_count() == 0
