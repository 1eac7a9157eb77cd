"""Makes the classes of a user's method known to checkpoints, before its run begins.

Those that its policies consist of, and whatever else the same modules define. A checkpoint's file
can name only classes that are known this way: it never has anything imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from fedoptima.core.serialization import freeze, register_foreign
from fedoptima.methods.registry import Builder


def make_storable(build: Builder, policies: Iterable[object]) -> None:
    """Raises ConfigError if a policy holds something that no checkpoint can."""
    _register_module(str(getattr(build, "__module__", "")))
    for policy in policies:
        _register(policy, {})
        freeze(policy)


def _register(value: object, seen: dict[int, object]) -> None:
    if isinstance(value, str | int | float | None) or id(value) in seen:
        return
    seen[id(value)] = value
    if _is_users(type(value).__module__):
        register_foreign(type(value))  # which may be a function's
        _register_module(type(value).__module__)
    for part in _parts(value):
        _register(part, seen)


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        return value
    held = list(getattr(value, "__dict__", {}).values())
    if is_dataclass(value):
        held += [getattr(value, field.name) for field in fields(value)]
    return held


def _register_module(name: str) -> None:
    """All classes that a module of the user's defines itself."""
    if _is_users(name) and name in sys.modules:
        here = vars(sys.modules[name]).values()
        register_foreign(*(c for c in here if isinstance(c, type) and c.__module__ == name))


def _is_users(module: str) -> bool:
    package = module.partition(".")[0]
    return package != "fedoptima" and package not in sys.stdlib_module_names
