"""What went wrong with devices, as the server heard of it."""

from __future__ import annotations

from collections.abc import Iterator

from fedoptima.analysis.formatting import listed
from fedoptima.core.effects import PROBLEMS, Note
from fedoptima.core.text import cut, printable
from fedoptima.core.types import NodeId
from fedoptima.trace.record import Record

Problem = tuple[NodeId, str]

_MOST = 20  # listed one by one


class ProblemAccount:
    """Feed it the server's records, in order."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def observe(self, record: Record) -> None:
        for effect in record.effects:
            if isinstance(effect, Note) and effect.kind in PROBLEMS:
                self.problems.append((effect.about, cut(effect.text or effect.kind)))
                del self.problems[_MOST:]


def in_words(problems: tuple[Problem, ...]) -> Iterator[str]:
    """Devices with the same problem are named together."""
    by_text: dict[str, list[str]] = {}
    for device, text in problems:
        by_text.setdefault(printable(text).rstrip("."), []).append(device)
    for text, devices in by_text.items():
        yield f"{listed(list(dict.fromkeys(devices)))} had a problem: {text}."
