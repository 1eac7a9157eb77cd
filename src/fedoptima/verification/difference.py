"""The first difference between a trace and what it should be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from fedoptima.trace.record import Record

_LONGEST = 300  # characters of a value: a plan has thousands
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Difference:
    number: int  # of the record, counted from 1
    record: Record
    what: str  # differs
    expected: str
    got: str

    def __str__(self) -> str:
        at, node, event = self.record.at, self.record.node, type(self.record.event).__name__
        return (
            f"record {self.number} ({node}, {event} at {at:.6f} s): {self.what}: "
            f"expected {self.expected}, got {self.got}"
        )

    def plain(self) -> dict[str, object]:
        return {
            "record": self.number,
            "at": self.record.at,
            "node": self.record.node,
            "event": shown(self.record.event),
            "what": self.what,
            "expected": self.expected,
            "got": self.got,
        }


def first_difference(
    number: int, record: Record, what: str, expected: object, got: object
) -> Difference | None:
    """None if the two are equal; otherwise the innermost field in which they differ."""
    if expected == got:
        return None
    path, wanted, found = _innermost(expected, got)
    return Difference(number, record, what + path, shown(wanted), shown(found))


def _innermost(expected: object, got: object) -> tuple[str, object, object]:
    for step, ours, theirs in _pairs(expected, got):
        if ours != theirs:
            path, ours, theirs = _innermost(ours, theirs)
            return step + path, ours, theirs
    return "", expected, got


def _pairs(expected: object, got: object) -> Iterator[tuple[str, object, object]]:
    """What two things of the same form consist of, side by side."""
    if is_dataclass(expected) and type(expected) is type(got):
        for field in fields(expected):
            if field.compare:
                yield f".{field.name}", getattr(expected, field.name), getattr(got, field.name)
    elif isinstance(expected, tuple) and isinstance(got, tuple) and len(expected) == len(got):
        for index, (ours, theirs) in enumerate(zip(expected, got, strict=True)):
            yield f"[{index}]", ours, theirs


def shown(value: object) -> str:
    text = value if value is NOTHING else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
