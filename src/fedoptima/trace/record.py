"""One line of a trace: at a time, a node handled an event and answered with effects.

Times are seconds since the run began, virtual or real. Tensors are never in a trace; payloads are
named by their ids. `core.serialization` defines the form on disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import cast

from fedoptima.core.effects import Effect
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.events import Event
from fedoptima.core.serialization import freeze, thaw
from fedoptima.core.types import NodeId, value
from fedoptima.trace.line import WRITERS, text_of

_decode = json.JSONDecoder().raw_decode  # `json.loads` looks for white space around, too


# What `Record.from_line` may raise for a line that no fedoptima wrote.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, InvariantBroken)

# What is done with a trace, and with how many records so far.
RecordProgress = Callable[[str, int], None]


@value
class Record:
    at: float
    node: NodeId
    event: Event
    effects: Sequence[Effect]

    def to_line(self) -> str:
        line = f"[{text_of(self.at)},{text_of(self.node)},{WRITERS[type(self.event)](self.event)}"
        for effect in self.effects:
            line += f",{WRITERS[type(effect)](effect)}"
        return f"{line}]"

    def without_tensors(self) -> Record:
        """For code that keeps records: they must not keep tensors in memory."""
        effects = [thaw(freeze(effect)) for effect in self.effects]
        event = cast("Event", thaw(freeze(self.event)))
        return Record(self.at, self.node, event, cast("list[Effect]", effects))

    @staticmethod
    def from_line(line: str) -> Record:
        plain, end = _decode(line)
        if end != len(line):
            raise ValueError(f"{len(line) - end} characters after the record")
        at, node, event, *effects = plain
        return Record(
            at, node, cast("Event", thaw(event)), cast("list[Effect]", list(map(thaw, effects)))
        )


RecordObserver = Callable[[Record], None]


def time_of(line: str) -> float:
    """A record's time, without reading the rest: a line begins with it."""
    return float(line[1 : line.index(",")])
