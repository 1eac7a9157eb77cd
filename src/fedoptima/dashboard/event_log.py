"""The operator's event log of a run: who came and went, what was refused, what failed.

The last entries are kept; the same event again and again is one entry with a count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fedoptima.core.effects import FIGURES, PROBLEMS, Halt, Note
from fedoptima.core.events import (
    Connected,
    Disconnected,
    DiskFailing,
    DiskWorks,
    EvaluationFailed,
    FailedLate,
    Gap,
    JobFailed,
)
from fedoptima.core.text import cut
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record

_KEPT = 40
_MOST_NAME = 100  # characters of a node's name or a kind


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
        self._left_out: set[NodeId] = set()

    def observe(self, record: Record) -> None:
        for entry in self._entries_of(record):
            if not self._again(entry):
                self.latest.append(entry)

    def left_out(self, devices: Mapping[NodeId, str], at: float) -> None:
        """Devices whose own records cannot all be read, and why."""
        for device, why in devices.items():
            if device not in self._left_out:
                self._left_out.add(device)
                self.latest.append(_entry(at, device, "records left out", why, True))

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
            case JobFailed(error=error) | FailedLate(error=error):
                yield _entry(at, node, "failed", error, True)
            case EvaluationFailed(error=error):
                yield _entry(at, node, "evaluation failed", error, True)
            case DiskFailing(error):
                yield _entry(at, node, "cannot write", error, True)
            case DiskWorks():
                yield _entry(at, node, "writes again", "", False)
            case Gap(records=records, since=since):
                missing = f"{records} records since {since:.1f} s could not be written"
                yield _entry(at, node, "gap in the trace", missing, True)
            case Connected(device) if node == SERVER:
                if device in self._known:
                    yield _entry(at, device, "came back", "", False)
                self._known.add(device)
            case Disconnected(device) if node == SERVER:
                yield _entry(at, device, "left", "", False)
        for effect in record.effects:
            match effect:
                case Note(kind, about, text) if kind not in FIGURES:
                    # What a device notes is its own word, whoever it says it is about.
                    speaks_of = about if node == SERVER else node
                    yield _entry(at, speaks_of, kind, text, kind in PROBLEMS)
                case Halt(reason, failed) if node == SERVER:
                    kind = "the run failed" if failed else "over"
                    yield _entry(at, SERVER, kind, reason, failed)


def _entry(at: float, node: str, kind: str, text: str, serious: bool) -> LogEntry:
    """A page shows this to every viewer, every second: long texts are cut."""
    return LogEntry(at, cut(node, _MOST_NAME), cut(kind, _MOST_NAME), cut(text), serious)
