"""A worker keeps what its steps free and take again, and gives back what is left between."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from pathlib import Path

import pytest

from fedoptima.sim.processes.freed_memory import FreedMemory

BLOCK, BLOCKS, STAYS = 2**16, 2000, 100  # bytes; of which every so many stays

glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not the GNU C library"
)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _given_back(results: multiprocessing.SimpleQueue[list[int]]) -> None:
    freed, given, stays = FreedMemory(), list[int](), list[bytearray]()
    for blocks in (BLOCKS, BLOCKS // 2):  # what the second time needs is there from the first
        taken = [bytearray(b"x" * BLOCK) for _ in range(blocks)]
        if not stays:  # the last one, too: the heap does not shrink by itself
            stays = taken[STAYS - 1 :: STAYS]
        del taken
        before = resident()
        freed.give_back()
        given.append(before - resident())
    results.put(given)


@glibc
def test_memory_goes_back_only_when_more_was_taken_than_ever_before() -> None:
    # In a process of its own, whose C library behaves otherwise from then on.
    processes = multiprocessing.get_context("spawn")
    results = processes.SimpleQueue()
    child = processes.Process(target=_given_back, args=(results,))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    grown, as_before = results.get()
    assert grown > BLOCK * BLOCKS // 2
    assert as_before < BLOCK * BLOCKS // 20
