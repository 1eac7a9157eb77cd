"""In which keys two recipes differ."""

from __future__ import annotations

from collections.abc import Mapping

from fedoptima.config.schema import Recipe
from fedoptima.core.text import cut

_SHOWN = 3
_LONGEST = 40  # characters of a value
_UNSET = object()


def different_keys(one: Recipe, other: Recipe) -> list[str]:
    """By their paths, as in ``--set``."""
    ones, others = _flat_of(one), _flat_of(other)
    return [key for key in ones | others if ones.get(key, _UNSET) != others.get(key, _UNSET)]


def difference(now: Recipe, before: Recipe) -> str:
    """In words, the first few."""
    keys, new, old = different_keys(before, now), _flat_of(now), _flat_of(before)
    told = [f"{key} is {_value(new, key)} and was {_value(old, key)}" for key in keys[:_SHOWN]]
    more = [f"{len(keys) - _SHOWN} more"] if len(keys) > _SHOWN else []
    return "; ".join(told + more)


def _value(flat: Mapping[str, object], key: str) -> str:
    value = flat.get(key)
    return "unset" if value is None else cut(repr(value), _LONGEST)


def _flat_of(recipe: Recipe) -> dict[str, object]:
    return _flat(recipe.model_dump(mode="json"))


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
