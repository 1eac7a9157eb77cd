"""One line of a trace: at a time, a node handled an event and answered with effects.

Times are seconds since the run began, virtual or real. Tensors are never in a trace; payloads are
named by their ids. `core.serialization` defines the form on disk, and here is one addition: a long
text of the event is not written again in the effects. They refer to it, ["=", 0] being the first
such text. So a server that sends its plan to every device has it once in its trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from operator import is_
from typing import Any, cast

from fedoptima.core.effects import Effect
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.events import DriverEvent, Event
from fedoptima.core.serialization import thaw
from fedoptima.core.types import NodeId, Payload, value
from fedoptima.trace.line import WRITERS, encode, text_of

_decode = json.JSONDecoder().raw_decode  # `json.loads` looks for white space around, too


_NEVER_TENSORS = frozenset({"int", "float", "str", "bool", "NodeId"})  # types of fields
_LONG = 200  # characters of a text that is written once
_REFERENCE = "="

# What `Record.from_line` may raise for a line that no fedoptima wrote.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, InvariantBroken)

# What is done with a trace, and with how many records so far.
RecordProgress = Callable[[str, int], None]


@value
class Record:
    at: float
    node: NodeId
    event: Event | DriverEvent
    effects: Sequence[Effect]

    def to_line(self) -> str:
        event = WRITERS[type(self.event)](self.event)
        parts = [f"[{text_of(self.at)},{text_of(self.node)},{event}"]
        for effect in self.effects:
            parts.append(WRITERS[type(effect)](effect))
        if len(event) > _LONG and self.effects:
            parts[1:] = _referring(parts[1:], event)
        return f"{','.join(parts)}]"

    def without_tensors(self) -> Record:
        """For code that keeps records: they must not keep tensors in memory."""
        effects = [_BARES[type(effect)](effect) for effect in self.effects]
        return Record(self.at, self.node, _BARES[type(self.event)](self.event), effects)

    @staticmethod
    def from_line(line: str) -> Record:
        plain, end = _decode(line)
        if end != len(line):
            raise ValueError(f"{len(line) - end} characters after the record")
        at, node, event, *effects = plain
        effects = resolved(line, event, effects)
        return Record(
            at, node, cast("Event", thaw(event)), cast("list[Effect]", list(map(thaw, effects)))
        )


Bare = Callable[[Any], Any]  # makes the same without tensors; returns itself, if it has none


class _Bares(dict[type, Bare]):
    """By the type of what may hold tensors; made when it is first needed."""

    def __missing__(self, kind: type) -> Bare:
        carriers = (
            [field.name for field in fields(kind) if field.type not in _NEVER_TENSORS]
            if is_dataclass(kind)
            else []
        )
        self[kind] = _dataclass(kind, carriers) if carriers else _itself
        return self[kind]


def _dataclass(kind: type, carriers: list[str]) -> Bare:
    """As `dataclasses` makes its methods: from source text, with one expression for each field."""
    takes = [
        f" old_{name} = value.{name}; new_{name} = bares[type(old_{name})](old_{name})"
        for name in carriers
    ]
    same = " and ".join(f"new_{name} is old_{name}" for name in carriers)
    given = [f"new_{f.name}" if f.name in carriers else f"value.{f.name}" for f in fields(kind)]
    made = f" return value if {same} else kind({', '.join(given)})"
    space: dict[str, Any] = {"bares": _BARES, "kind": kind}
    exec("\n".join(["def bare(value):", *takes, made]), space)
    return cast(Bare, space["bare"])


def _sequence(value: Any) -> Any:
    items = [_BARES[type(item)](item) for item in value]
    return value if all(map(is_, items, value)) else type(value)(items)


def _payload(value: Payload) -> Payload:
    return value if value.value is None else Payload(value.id, value.nbytes)


def _itself(value: object) -> object:
    return value


_BARES = _Bares({Payload: _payload, list: _sequence, tuple: _sequence})


def _long_texts(plain: object) -> list[str]:
    """Of an event's plain form, in order, each once."""
    found: dict[str, None] = {}
    waiting = [plain]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if len(item) > _LONG:
                found[item] = None
        elif isinstance(item, list):
            waiting.extend(reversed(item))
    return list(found)


def _referring(effects: list[str], event: str) -> list[str]:
    """The effects' lines with the event's long texts replaced by references to them."""
    for number, text in enumerate(_long_texts(_decode(event)[0])):
        written, reference = encode(text), encode([_REFERENCE, number])
        effects = [effect.replace(written, reference) for effect in effects]
    return effects


def resolved(line: str, event: object, effects: list[object]) -> list[object]:
    """The effects' plain form with the texts that they refer to, which are not copied."""
    if len(line) > _LONG and f'["{_REFERENCE}",' in line:
        _resolve(effects, _long_texts(event))
    return effects


def _resolve(plain: list[object], texts: list[str]) -> None:
    for place, item in enumerate(plain):
        if isinstance(item, list):
            if len(item) == 2 and item[0] == _REFERENCE:
                plain[place] = texts[item[1]]
            else:
                _resolve(item, texts)


RecordObserver = Callable[[Record], None]


def time_of(line: str) -> float:
    """A record's time, without reading the rest: a line begins with it."""
    return float(line[1 : line.index(",")])
