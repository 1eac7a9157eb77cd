"""What was freed goes back to the system, also where something behind it is still in use."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

import pytest

from fedoptima.runtime.native_memory import kept_small

BLOCK, BLOCKS, KEPT = 64 << 10, 2_000, 100  # bytes; of which every so many is kept
DEADLINE = 120.0  # seconds

glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not the GNU C library"
)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def until_resident_is_below(nbytes: int) -> None:
    async with asyncio.timeout(DEADLINE):
        while resident() >= nbytes:
            await asyncio.sleep(0.01)


@glibc
def test_memory_that_was_freed_between_blocks_in_use_is_given_back() -> None:
    blocks = [bytearray(os.urandom(1) * BLOCK) for _ in range(BLOCKS)]
    kept = blocks[KEPT - 1 :: KEPT]  # the last one among them: the heap does not shrink by itself
    full = resident()
    del blocks

    async def give_back() -> None:
        async with kept_small(every=0.01):
            await until_resident_is_below(full - BLOCK * BLOCKS // 2)

    asyncio.run(give_back())
    assert len(kept) == BLOCKS // KEPT


def test_the_end_of_a_run_ends_the_giving_back() -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        async with kept_small():
            pass
        assert asyncio.all_tasks() == before

    asyncio.run(run())
