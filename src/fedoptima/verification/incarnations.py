"""Where one life of a device ends in its records and the next begins.

A device's process begins with a connection and introduces itself with the number of its life: the
first record that says another number is the first of a new life. What the old one left undone,
nobody will ever answer.
"""

from __future__ import annotations

from fedoptima.core.effects import Send
from fedoptima.core.events import Connected
from fedoptima.core.messages import Join
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record


class Lives:
    def __init__(self) -> None:
        self._current: dict[NodeId, int] = {}

    def begun_by(self, record: Record) -> Join | None:
        """How the device introduced itself, if ``record`` is the first of a life."""
        if record.node == SERVER or not isinstance(record.event, Connected):
            return None
        for effect in record.effects:
            if isinstance(effect, Send) and isinstance(effect.message, Join):
                join = effect.message
                if self._current.get(record.node) != join.incarnation:
                    self._current[record.node] = join.incarnation
                    return join
        return None
