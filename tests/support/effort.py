"""How much of this package a call runs through, in lines: the same everywhere, unlike its time.

What the interpreter does inside one line is not seen, so this finds loops over the fleet that are
written as loops, comprehensions or key functions; heap operations count as the one line they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def lines_executed(call: Callable[[], object]) -> int:
    lines = 0

    def count(frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal lines
        # Others may run in between: the garbage collector has listeners, for one.
        lines += event == "line" and frame.f_globals["__name__"].startswith("fedoptima.")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines
