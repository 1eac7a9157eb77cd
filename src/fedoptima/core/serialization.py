"""Core objects as plain data (JSON) and back: for traces, snapshots and replay.

    scalar                 itself, a StrEnum as its string
    dataclass              ["Name", field, ...]       in the order of its fields; last ones that
                                                      were added later only if they are in use
    policy or machine      ["Name", {attribute: ...}]
    Payload                ["Payload", id, nbytes]    its value goes to the tensor table; a fourth
                                                      item is its key there, if that is not the id
    tuple, list, deque     ["()", ...], ["[]", ...], ["<>", ...]; ["<n>", n, ...] with a length
    dict, ordered, counter ["{}", [key, value], ...], ["{=}", ...], ["{+}", ...]
    class of a user's code ["module:Name", {attribute: ...}]

Every array begins with a string that names its type, so it can be read back unambiguously. Nothing
is ever imported for a name that is read: only classes that are registered come back.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from enum import Enum, StrEnum
from operator import attrgetter
from typing import TypeVar, cast

from fedoptima.core.errors import ConfigError, InvariantBroken
from fedoptima.core.types import LATER, Payload, PayloadId

Plain = object
Tensors = MutableMapping[PayloadId, object]
_Values = Mapping[PayloadId, object] | None
_Builder = Callable[[list[Plain], _Values], object]  # from an array to its object

Class = TypeVar("Class", bound=type)

_SCALARS = (str, int, float, bool, type(None))
_SEQUENCES: dict[type, str] = {tuple: "()", list: "[]"}
_MAPPINGS: dict[type, str] = {dict: "{}", OrderedDict: "{=}", Counter: "{+}"}
_CONTAINERS = (list, dict, deque, set, frozenset)
_classes: dict[str, type] = {}
_foreign: dict[type, str] = {}  # classes of users' code, and the names they are written under
_getters: dict[type, Callable[[object], tuple[object, ...]]] = {}
_builders: dict[str, _Builder] = {}


def register(*classes: type) -> None:
    """Make classes known by name. Names are unique across the package."""
    for cls in classes:
        if _classes.setdefault(cls.__name__, cls) is not cls:
            raise InvariantBroken(f"two classes are called {cls.__name__}")
        if is_dataclass(cls):
            _getters[cls] = _field_getter(cls)
        _builders[cls.__name__] = _builder(cls)


def register_foreign(*classes: type) -> None:
    """Classes of a user's code, under names that say where they are; the newest definition of a
    class counts: a notebook's cell may be executed again. Of a class made from a list or a
    dict, or with slots, attributes are not all that it holds: those are left out."""
    for cls in classes:
        name = f"{cls.__module__}:{cls.__qualname__}"
        called = issubclass(cls, Enum | tuple)
        whole = called or is_dataclass(cls) or cls.__dictoffset__ != 0
        if whole and not issubclass(cls, _CONTAINERS):
            _foreign[cls] = name
            _builders[name] = _caller(cls) if called else _foreign_restorer(cls)


def stored(cls: Class) -> Class:
    """A decorator: objects of this class may be held by a policy, and so be in checkpoints."""
    register_foreign(cls)
    return cls


def field_names(cls: type) -> tuple[str, ...] | None:
    """A registered dataclass: its fields, in the order in which they are written."""
    return tuple(field.name for field in fields(cls)) if cls in _getters else None


def later_fields(cls: type) -> dict[str, object]:
    """The last fields of a dataclass that are not written where they have their defaults."""
    return {field.name: field.default for field in fields(cls) if LATER in field.metadata}


def _builder(cls: type) -> _Builder:
    if is_dataclass(cls):
        checks = hasattr(cls, "__post_init__") or "__slots__" not in vars(cls)
        return _caller(cls) if checks else _filler(cls)
    return _caller(cls) if issubclass(cls, Enum) else _restorer(cls)


def _field_getter(cls: type) -> Callable[[object], tuple[object, ...]]:
    names = [field.name for field in fields(cls)]
    if defaults := tuple(later_fields(cls).values()):
        return _used_fields_getter(names, defaults)
    if len(names) >= 2:
        return cast(Callable[[object], tuple[object, ...]], attrgetter(*names))
    return lambda value: tuple(getattr(value, name) for name in names)


def _used_fields_getter(
    names: list[str], defaults: tuple[object, ...]
) -> Callable[[object], tuple[object, ...]]:
    def get(value: object) -> tuple[object, ...]:
        found = tuple(getattr(value, name) for name in names)
        for default in reversed(defaults):
            if found[-1] != default:
                break
            found = found[:-1]
        return found

    return get


def freeze(value: object, tensors: Tensors | None = None) -> Plain:
    """Plain data for ``value``; the values of its payloads are put into ``tensors``."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is Payload:
        payload = cast(Payload, value)
        key = payload.id if tensors is None else _put(tensors, payload)
        return ["Payload", payload.id, payload.nbytes, *([key] if key != payload.id else [])]
    getter = _getters.get(kind)
    if getter is not None:
        return [
            kind.__name__,
            *(v if type(v) in _SCALARS else freeze(v, tensors) for v in getter(value)),
        ]
    if kind in _foreign:
        return [_foreign[kind], *_state(value, tensors)]
    if (tag := _SEQUENCES.get(kind)) is not None:
        return [tag, *(freeze(item, tensors) for item in cast("list[object]", value))]
    if (tag := _MAPPINGS.get(kind)) is not None:
        pairs = cast("dict[object, object]", value).items()
        return [tag, *([freeze(k, tensors), freeze(v, tensors)] for k, v in pairs)]
    if isinstance(value, deque):
        tags = ["<>"] if value.maxlen is None else ["<n>", value.maxlen]
        return [*tags, *(freeze(item, tensors) for item in value)]
    if _classes.get(kind.__name__) is kind:
        if isinstance(value, Enum):
            return value.value if isinstance(value, StrEnum) else [kind.__name__, value.value]
        return [kind.__name__, {k: freeze(v, tensors) for k, v in vars(value).items()}]
    raise ConfigError(
        f"{kind.__module__}.{kind.__qualname__} cannot be stored in a checkpoint: it was never "
        "registered. A policy may hold numbers, text, lists, tuples, dicts, deques, dataclasses "
        "and classes of its own module; mark others with @fedoptima.methods.stored"
    )


def _state(value: object, tensors: Tensors | None) -> list[Plain]:
    """What an object of a user's class holds."""
    if isinstance(value, Enum):
        return [value.value]
    if isinstance(value, tuple):
        return [freeze(item, tensors) for item in value]
    held = dict(getattr(value, "__dict__", {}))
    if is_dataclass(value) and not isinstance(value, type):
        held |= {field.name: getattr(value, field.name) for field in fields(value)}
    return [{name: freeze(item, tensors) for name, item in held.items()}]


def _put(tensors: Tensors, payload: Payload) -> PayloadId:
    """The key of its value; not its id if another value has that: a peer chooses its ids."""
    key, number = payload.id, 1
    while tensors.setdefault(key, payload.value) is not payload.value:
        number += 1
        key = PayloadId(f"{payload.id}~{number}")
    return key


# ---- reading: traces have millions of arrays, so nothing is looked up twice ----------------------


def thaw(plain: Plain, tensors: _Values = None) -> object:
    """The object again. Payloads take their values from ``tensors`` where it has them."""
    if type(plain) is not list:
        return plain
    try:
        build = _builders[plain[0]]
    except IndexError:
        raise ValueError("an array that does not name its type") from None
    except KeyError:
        if ":" in str(plain[0]):
            raise ConfigError(
                f"{plain[0]!r} is in the checkpoint, and the method that was built has no such "
                "class: was it renamed or moved?"
            ) from None
        raise InvariantBroken(f"unknown class {plain[0]!r}: written by another version?") from None
    return build(plain, tensors)


def _items(plain: list[Plain], tensors: _Values) -> list[object]:
    return [thaw(item, tensors) if type(item) is list else item for item in plain[1:]]


def _pairs(plain: list[Plain], tensors: _Values) -> list[tuple[object, object]]:
    pairs = cast(list[tuple[Plain, Plain]], plain[1:])
    return [(thaw(key, tensors), thaw(value, tensors)) for key, value in pairs]


def _caller(cls: type) -> _Builder:
    def build(plain: list[Plain], tensors: _Values) -> object:
        return cls(*_items(plain, tensors))

    return build


def _filler(cls: type) -> _Builder:
    """Writes the slots: a frozen class's own way of setting a field takes three times as long."""
    setters = [getattr(cls, field.name).__set__ for field in fields(cls)]
    size = 1 + len(setters)
    create = object.__new__

    def build(plain: list[Plain], tensors: _Values) -> object:
        if len(plain) != size:  # by another version: the class knows what may be left out
            return cls(*_items(plain, tensors))
        made: object = create(cls)
        for place, put in enumerate(setters, start=1):
            item = plain[place]
            put(made, thaw(item, tensors) if type(item) is list else item)
        return made

    return build


def _payload(plain: list[Plain], tensors: _Values) -> Payload:
    if len(plain) == 3:  # as in every trace
        _, identity, nbytes = cast("tuple[str, PayloadId, int]", plain)
        key = identity
    else:
        _, identity, nbytes, key = cast("tuple[str, PayloadId, int, PayloadId]", plain)
    found = tensors.get(key) if tensors else None
    return Payload(identity, nbytes, found)


def _restorer(cls: type) -> _Builder:
    def build(plain: list[Plain], tensors: _Values) -> object:
        restored: object = object.__new__(cls)
        state = cast(dict[str, Plain], plain[1])
        vars(restored).update({name: thaw(item, tensors) for name, item in state.items()})
        return restored

    return build


def _foreign_restorer(cls: type) -> _Builder:
    """Attribute by attribute: no code of the class is called with what a file says."""

    def build(plain: list[Plain], tensors: _Values) -> object:
        restored: object = object.__new__(cls)
        for name, item in cast(dict[str, Plain], plain[1]).items():
            object.__setattr__(restored, name, thaw(item, tensors))
        return restored

    return build


_builders |= {
    "()": lambda plain, tensors: tuple(_items(plain, tensors)),
    "[]": _items,
    "<>": lambda plain, tensors: deque(_items(plain, tensors)),
    "{}": lambda plain, tensors: dict(_pairs(plain, tensors)),
    "<n>": lambda plain, tensors: deque(_items(plain[1:], tensors), cast(int, plain[1])),
    "{=}": lambda plain, tensors: OrderedDict(_pairs(plain, tensors)),
    "{+}": lambda plain, tensors: Counter(dict(_pairs(plain, tensors))),
    "Payload": _payload,
}
