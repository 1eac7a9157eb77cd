"""Python's collector leaves alone what a process has before its work begins.

It looks for cycles among all objects now and then, and modules are most of them: torch's and ours
took 165 ms of a server's event loop at a time, in which nobody was answered.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived() -> Iterator[None]:
    """While it lasts, what is there now is not visited."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
