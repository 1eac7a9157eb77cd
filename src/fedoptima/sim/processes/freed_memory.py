"""Memory that a worker's steps have freed: what the C library keeps of it, and what it gives back.

Every step takes and frees the same amounts, so they are kept: the system would clear each page
every time. But what stays of a device that is used for the first time, though small, comes to lie
between them. A large tensor that no longer fits there is put elsewhere, and the pages that are left
over would be kept, too, for nothing. Where the C library is another one than glibc, nothing is
done.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

_KEPT: Final = 2**26  # bytes
_GROWTH: Final = 2**24  # bytes; to give back more often takes longer than it saves
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names


class FreedMemory:
    def __init__(self) -> None:
        """From now on this process keeps what it frees."""
        self._library = _glibc()
        self._highest = 0  # where the memory ended when some was given back last
        if self._library is not None:
            self._library.mallopt(_MMAP_THRESHOLD, _KEPT // 2)
            self._library.mallopt(_TRIM_THRESHOLD, _KEPT)
            self._highest = self._library.sbrk(0)

    def give_back(self) -> None:
        """Between two steps: if more was taken than ever before, what is free may not have fitted;
        the next step gets back what it does use."""
        if self._library is None:
            return
        end = self._library.sbrk(0)
        if end >= self._highest + _GROWTH:
            self._highest = end
            self._library.malloc_trim(_KEPT)


def _glibc() -> Any:
    library = ctypes.CDLL(None)
    if not (hasattr(library, "malloc_trim") and hasattr(library, "sbrk")):
        return None
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    library.sbrk.argtypes, library.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_ssize_t
    return library
