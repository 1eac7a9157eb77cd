"""Where one incarnation of a device ends in its records and the next begins.

A device's process starts with a connection and joins with the number of its incarnation: the first
record with another number is the first of a new one. Jobs that the old one left open are never
answered.
"""

from __future__ import annotations

from fedoptima.core.effects import Send
from fedoptima.core.events import Connected
from fedoptima.core.messages import Join
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record


class Incarnations:
    def __init__(self) -> None:
        self._current: dict[NodeId, int] = {}

    def begun_by(self, record: Record) -> Join | None:
        """The device's Join, if ``record`` is the first of an incarnation."""
        if record.node == SERVER or not isinstance(record.event, Connected):
            return None
        for effect in record.effects:
            if isinstance(effect, Send) and isinstance(effect.message, Join):
                join = effect.message
                if self._current.get(record.node) != join.incarnation:
                    self._current[record.node] = join.incarnation
                    return join
        return None
