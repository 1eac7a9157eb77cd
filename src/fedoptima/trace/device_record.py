"""Which records a device may hand in: its own, about itself, that every reader can read.

A device's records are shown to people and added up, so one is believed only if each of its fields
is of the type that its class declares. A device speaks to the server and runs a device's jobs:
nothing else can be in its records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, NoReturn, Union, cast, get_args, get_origin, get_type_hints

from fedoptima.core.effects import Effect, Halt, Note, Run, Send
from fedoptima.core.events import (
    Connected,
    Disconnected,
    DiskFailing,
    DiskWorks,
    Event,
    JobDone,
    JobFailed,
    Measured,
    Received,
    Rejected,
)
from fedoptima.core.jobs import DeviceJob, Job
from fedoptima.core.messages import ToDevice, ToServer
from fedoptima.core.serialization import thaw
from fedoptima.core.text import MOST_TEXT
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.trace.record import Record, resolved

_DeviceEvent = (
    Connected
    | Disconnected
    | Received
    | Rejected
    | JobDone
    | JobFailed
    | Measured
    | DiskFailing
    | DiskWorks
)
_DeviceEffect = Send | Run | Note | Halt
_NARROWER: Final[dict[tuple[type, str], object]] = {
    (Received, "message"): ToDevice,
    (Send, "message"): ToServer,
}
_MOST_PLAN: Final = 1 << 20  # characters
_MOST_IDENTIFIER: Final = 200
_MOST_NUMBER: Final = 1 << 53  # every reader has such numbers exactly
_SHOWN: Final = 80

_Check = Callable[[object], bool]


def _not_finite(_: str) -> NoReturn:
    raise ValueError("not a finite number")


_decode = json.JSONDecoder(parse_constant=_not_finite).decode


def read_device_record(line: str, node: NodeId) -> Record:
    """The record in ``line``; ValueError if ``node`` cannot have made it."""
    try:
        at, name, event, *effects = _decode(line)
        effects = resolved(line, event, effects)
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ValueError(f"a record that cannot be read: {line[:_SHOWN]!r}") from None
    if name != node:
        raise ValueError(f"a record that is not its own: {line[:_SHOWN]!r}")
    if not (_is_float(at) and _is_event(event) and all(map(_is_effect, effects))):
        raise ValueError(f"a record that no device makes: {line[:_SHOWN]!r}")
    return Record(
        float(at), node, cast(Event, thaw(event)), cast("list[Effect]", list(map(thaw, effects)))
    )


@cache
def _check_of(hint: Any) -> _Check:
    """Is a value, in its plain form, of this type?"""
    if hint == Job:
        return _check_of(DeviceJob)
    if hint is NodeId:  # a device knows no other node
        return lambda value: value == SERVER
    if hint is Payload:
        return _is_payload
    if hint in _SCALARS:
        return _SCALARS[hint]
    if get_origin(hint) in (Union, UnionType):
        return _check_of_union(get_args(hint))
    if isinstance(hint, type):
        return _check_of_class(hint)
    raise TypeError(f"{hint} is in no record of a device")


def _check_of_union(hints: tuple[Any, ...]) -> _Check:
    """Of classes, each known by its name, and perhaps of None or one scalar."""
    classes = {hint.__name__: _check_of(hint) for hint in hints if hint not in _SCALARS}
    scalars = [_SCALARS[hint] for hint in hints if hint in _SCALARS]

    def check(value: object) -> bool:
        if type(value) is not list:
            return any(is_one(value) for is_one in scalars)
        is_one = classes.get(value[0]) if value and type(value[0]) is str else None
        return is_one is not None and is_one(value)

    return check


def _check_of_class(cls: Any) -> _Check:
    name, hints = cls.__name__, get_type_hints(cls)
    checks: list[_Check] = []
    required = 1
    for field in fields(cls):
        hint = _NARROWER.get((cls, field.name), hints[field.name])
        checks.append(_is_plan if field.name == "plan" else _check_of(hint))
        required += field.default is MISSING

    def check(value: object) -> bool:
        if type(value) is not list or not required <= len(value) <= 1 + len(checks):
            return False
        if value[0] != name:
            return False
        for is_right, item in zip(checks, value[1:], strict=False):  # noqa: SIM110 (it is slower)
            if not is_right(item):
                return False
        return True

    return check


def _is_payload(value: object) -> bool:
    match value:
        case ["Payload", identity, int(nbytes)]:
            return _is_identifier(identity) and _is_int(nbytes) and nbytes >= 0
    return False


def _is_int(value: object) -> bool:
    return type(value) is int and -_MOST_NUMBER <= value <= _MOST_NUMBER


def _is_float(value: object) -> bool:
    return _is_int(value) or (type(value) is float and math.isfinite(value))


def _is_text(value: object, most: int = MOST_TEXT) -> bool:
    return type(value) is str and len(value) <= most and _can_be_written(value)


def _is_plan(value: object) -> bool:
    return _is_text(value, _MOST_PLAN)


def _is_identifier(value: object) -> bool:
    return type(value) is str and 1 <= len(value) <= _MOST_IDENTIFIER and value.isprintable()


def _can_be_written(text: str) -> bool:
    """JSON can name half of a character (a lone surrogate), which no file can hold."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


_SCALARS: Final[dict[Any, _Check]] = {
    str: _is_text,
    int: _is_int,
    float: _is_float,
    bool: lambda value: type(value) is bool,
    NoneType: lambda value: value is None,
    PayloadId: _is_identifier,
}

_is_event, _is_effect = _check_of(_DeviceEvent), _check_of(_DeviceEffect)
