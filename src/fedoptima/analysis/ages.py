"""How long activation batches had waited when the server used them, as a histogram."""

from __future__ import annotations

from fedoptima.analysis.server_state import Holdings
from fedoptima.core.effects import Run
from fedoptima.core.jobs import ServerStep
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record


class AgeAccount:
    """Feed it every record, in order.

    ``counts[0]`` are batches used within a millisecond, ``counts[i]`` those that had waited less
    than 2^i ms and not less than half of that: bounded, however long they wait.
    """

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._holdings = Holdings()

    def observe(self, record: Record) -> None:
        if record.node != SERVER:
            return
        self._holdings.observe(record)
        for effect in record.effects:
            if isinstance(effect, Run) and isinstance(effect.job, ServerStep):
                place = int(1000 * self._holdings.step_age).bit_length()
                self.counts += [0] * (place + 1 - len(self.counts))
                self.counts[place] += 1
