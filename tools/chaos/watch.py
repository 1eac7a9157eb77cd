"""What can be seen of a run from outside while it goes on: its server's trace, as it grows."""

from __future__ import annotations

from pathlib import Path

from fedoptima.core.events import JobDone, Received
from fedoptima.core.jobs import Merge
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.trace.tail import CutBack, FileTail

Update = tuple[NodeId, int, PayloadId]  # device, session, what was received


class Watch:
    def __init__(self, trace: Path) -> None:
        self._trace = trace
        self._begin()

    def _begin(self) -> None:
        self._tail = FileTail(self._trace)
        self.updates: dict[Update, None] = {}
        self.merges = 0

    def look(self) -> None:
        """All that is on disk by now."""
        while True:
            try:
                records = self._tail.read()
            except CutBack:  # the server was resumed
                self._begin()
                continue
            if not records:
                return
            for record in records:
                if record.node != SERVER:
                    continue
                match record.event:
                    case Received(device, session, ModelUpdate() as update):
                        self.updates[device, session, update.data.id] = None
                    case JobDone(_, Merge()):
                        self.merges += 1

    def news(self, device: str, known: set[Update]) -> PayloadId | None:
        """An update that has come from the device and is not among those."""
        found = [key for key in self.updates if key[0] == device and key not in known]
        return found[0][2] if found else None
