"""A table as TOML text: what recipes are made of, and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, object]) -> str:
    """Values that are None are left out: TOML has none."""
    return "\n".join(_lines(table, "")).strip() + "\n"


def _lines(table: Mapping[str, object], path: str) -> Iterator[str]:
    present = {key: value for key, value in table.items() if value is not None}
    inner = {key: value for key, value in present.items() if isinstance(value, Mapping) and value}
    for key, value in present.items():
        if key not in inner:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        place = f"{path}.{_key(key)}".lstrip(".")
        if not all(isinstance(item, Mapping) and item for item in value.values()):
            yield from ("", f"[{place}]")
        yield from _lines(value, place)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        items = (f"{_key(key)} = {_value(v)}" for key, v in value.items() if v is not None)
        inside = ", ".join(items)
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
