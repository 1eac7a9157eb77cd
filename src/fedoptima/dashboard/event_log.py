"""The operator's event log of a run: who came and went, what was refused, what failed.

The last entries are kept; the same event again and again is one entry with a count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fedoptima.core.effects import PROBLEMS, Halt, Note
from fedoptima.core.events import Connected, Disconnected, EvaluationFailed, JobFailed
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record

_KEPT = 40


@dataclass(slots=True)
class LogEntry:
    at: float  # the last time
    node: str
    kind: str
    text: str
    serious: bool
    times: int = 1


class EventLog:
    """Feed it each node's records in order; how the nodes' are interleaved does not matter."""

    def __init__(self) -> None:
        self.latest: deque[LogEntry] = deque(maxlen=_KEPT)
        self._known: set[str] = set()  # devices that have been here before

    def observe(self, record: Record) -> None:
        for entry in self._entries_of(record):
            if not self._again(entry):
                self.latest.append(entry)

    def _again(self, new: LogEntry) -> bool:
        for old in self.latest:
            if (old.node, old.text) != (new.node, new.text):
                continue
            # A device records its error, and the server that it was reported: the same error.
            if old.kind == new.kind or (old.serious and new.serious):
                old.times += old.kind == new.kind
                old.at = max(old.at, new.at)
                return True
        return False

    def _entries_of(self, record: Record) -> Iterator[LogEntry]:
        at, node = record.at, record.node
        match record.event:
            case JobFailed(error=error):
                yield LogEntry(at, node, "failed", error, True)
            case EvaluationFailed(error=error):
                yield LogEntry(at, node, "evaluation failed", error, True)
            case Connected(device) if node == SERVER:
                if device in self._known:
                    yield LogEntry(at, device, "came back", "", False)
                self._known.add(device)
            case Disconnected(device) if node == SERVER:
                yield LogEntry(at, device, "left", "", False)
        for effect in record.effects:
            match effect:
                case Note(kind, about, text):
                    yield LogEntry(at, about, kind, text, kind in PROBLEMS)
                case Halt(reason, failed) if node == SERVER:
                    kind = "the run failed" if failed else "over"
                    yield LogEntry(at, SERVER, kind, reason, failed)
