"""Memory outside of Python's own: what was freed goes back to the system.

Tensors and what gRPC receives come from the C library, on one thread, and are freed on another. By
default glibc has a pool for each thread, and what lies free in pools is neither given back nor used
by the others: with hundreds of connections a server's memory grew by 10 MiB and more a minute.
Where the C library is another one, nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fedoptima.runtime.garbage import long_lived

_ARENA_MAX: Final = -8  # mallopt's name for the number of pools
_POOLS: Final = 2
_EVERY: Final = 10.0  # seconds


@asynccontextmanager
async def kept_small(every: float = _EVERY) -> AsyncIterator[None]:
    """While it lasts, this process has few pools, and what lies free in them is given back.

    And Python's collector leaves alone what there was before (`garbage.py`).
    """
    library = _library()
    with long_lived():
        if library is None:
            yield
            return
        library.mallopt(_ARENA_MAX, _POOLS)
        giving_back = asyncio.create_task(_give_back(library, every))
        try:
            yield
        finally:
            giving_back.cancel()
            await asyncio.gather(giving_back, return_exceptions=True)


async def _give_back(library: Any, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        # Not on the event loop: it takes milliseconds, in which other threads go on.
        await asyncio.to_thread(library.malloc_trim, 0)


def _library() -> Any:
    """glibc; None: this process has another one."""
    library = ctypes.CDLL(None)
    has_both = hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
    return library if has_both else None
