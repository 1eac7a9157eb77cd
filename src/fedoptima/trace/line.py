"""Core objects as the JSON text of their plain form, written directly.

A dry run spends much of its time on its trace. So for every class that `core.serialization` knows,
a function is made that writes its fields one after another, and no nested lists are built in
between. The text is the same to the byte as `encode` of `freeze` (tests/trace/test_line.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

import fedoptima.core.serializable_types  # noqa: F401  (makes every core class known by name)
from fedoptima.core.serialization import field_names, freeze, later_fields
from fedoptima.core.types import Payload

encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

Write = Callable[[Any], str]


class _Writers(dict[type, Write]):
    """By the type of what is written; made when it is first needed."""

    def __missing__(self, kind: type) -> Write:
        names = field_names(kind)
        # What has no writer of its own takes the long way: rare, and the same text.
        write = _general if names is None else _writer(kind, names)
        self[kind] = write
        return write


def _general(value: object) -> str:
    return encode(freeze(value))


def _writer(kind: type, names: tuple[str, ...]) -> Write:
    """Fields that were added later are written where they, or ones after them, are in use."""
    added = tuple(later_fields(kind).items())
    always = len(names) - len(added)
    writers = [_fields_writer(kind.__name__, names[:end]) for end in range(always, len(names) + 1)]

    def write(value: object) -> str:
        used = len(added)
        while used and getattr(value, added[used - 1][0]) == added[used - 1][1]:
            used -= 1
        return writers[used](value)

    return write if added else writers[0]


def _fields_writer(name: str, fields: tuple[str, ...]) -> Write:
    """As `dataclasses` makes its methods: from source text, with one expression for each field."""
    values = "".join(f",{{write[type(value.{field})](value.{field})}}" for field in fields)
    made: Write = eval(f"lambda value: f'[\"{name}\"{values}]'", {"write": WRITERS})
    return made


def _float(value: float) -> str:
    return repr(value) if value - value == 0.0 else encode(value)  # not for NaN or an infinity


def _tuple(values: tuple[object, ...]) -> str:
    return "".join(['["()"', *[f",{WRITERS[type(value)](value)}" for value in values], "]"])


WRITERS = _Writers(
    {
        str: encode_basestring,
        int: repr,
        float: _float,
        bool: lambda value: "true" if value else "false",
        type(None): lambda value: "null",
        tuple: _tuple,
    }
)
WRITERS[Payload] = _fields_writer("Payload", ("id", "nbytes"))


def text_of(value: object) -> str:
    return WRITERS[type(value)](value)
