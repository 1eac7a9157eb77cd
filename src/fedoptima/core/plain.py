"""Core objects as plain data (JSON) and back: for traces, snapshots and replay.

    scalar                 itself
    dataclass              ["Name", field, ...]       in the order of its fields
    policy or machine      ["Name", {attribute: ...}]
    Payload                ["Payload", id, nbytes]    its value goes to the tensor table
    tuple, list, deque     ["()", ...], ["[]", ...], ["<>", ...]
    dict, ordered dict     ["{}", [key, value], ...], ["{=}", ...]

Every array begins with a string that says what it is, so the way back is unambiguous.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import cast

from fedoptima.core.errors import InvariantBroken
from fedoptima.core.types import Payload, PayloadId

Plain = object
Tensors = MutableMapping[PayloadId, object]

_SCALARS = (str, int, float, bool, type(None))
_classes: dict[str, type] = {}
_getters: dict[type, Callable[[object], tuple[object, ...]]] = {}


def register(*classes: type) -> None:
    """Make classes known by name. Names are unique across the package."""
    for cls in classes:
        if _classes.setdefault(cls.__name__, cls) is not cls:
            raise InvariantBroken(f"two classes are called {cls.__name__}")
        if is_dataclass(cls):
            _getters[cls] = _field_getter(cls)


def _field_getter(cls: type) -> Callable[[object], tuple[object, ...]]:
    names = [field.name for field in fields(cls)]
    if len(names) >= 2:
        return cast(Callable[[object], tuple[object, ...]], attrgetter(*names))
    return lambda value: tuple(getattr(value, name) for name in names)


def freeze(value: object, tensors: Tensors | None = None) -> Plain:
    """Plain data for ``value``; the values of its payloads are put into ``tensors``."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is Payload:
        payload = cast(Payload, value)
        if tensors is not None:
            tensors[payload.id] = payload.value
        return ["Payload", payload.id, payload.nbytes]
    getter = _getters.get(kind)
    if getter is not None:
        return [
            kind.__name__,
            *(v if type(v) in _SCALARS else freeze(v, tensors) for v in getter(value)),
        ]
    if isinstance(value, Enum):
        return [kind.__name__, value.value]
    if isinstance(value, tuple | list | deque):
        tag = "()" if kind is tuple else "[]" if kind is list else "<>"
        return [tag, *(freeze(item, tensors) for item in value)]
    if isinstance(value, dict):
        tag = "{=}" if kind is OrderedDict else "{}"
        return [tag, *([freeze(k, tensors), freeze(v, tensors)] for k, v in value.items())]
    if _classes.get(kind.__name__) is kind:
        return [kind.__name__, {k: freeze(v, tensors) for k, v in vars(value).items()}]
    raise InvariantBroken(f"{kind.__name__} cannot be made plain: it was never registered")


def thaw(plain: Plain, tensors: Mapping[PayloadId, object] | None = None) -> object:
    """The object again. Payloads take their values from ``tensors`` where it has them."""
    if not isinstance(plain, list):
        return plain
    tag, *rest = plain
    match tag:
        case "()":
            return tuple(thaw(item, tensors) for item in rest)
        case "[]":
            return [thaw(item, tensors) for item in rest]
        case "<>":
            return deque(thaw(item, tensors) for item in rest)
        case "{}":
            return {thaw(k, tensors): thaw(v, tensors) for k, v in rest}
        case "{=}":
            return OrderedDict((thaw(k, tensors), thaw(v, tensors)) for k, v in rest)
        case "Payload":
            identity, nbytes = rest
            return Payload(identity, nbytes, tensors.get(identity) if tensors else None)
    cls = _classes.get(tag)
    if cls is None:
        raise InvariantBroken(f"unknown class {tag!r}: written by another version?")
    if is_dataclass(cls) or issubclass(cls, Enum):
        built: object = cls(*(thaw(item, tensors) for item in rest))
        return built
    restored: object = object.__new__(cls)
    vars(restored).update({name: thaw(item, tensors) for name, item in rest[0].items()})
    return restored
