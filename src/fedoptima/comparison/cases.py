"""A case is one row of the table: a method, with those of the varied settings that reach it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from fedoptima.comparison.settings import METHOD, OwnOptions, reaches

_LONGEST_NAME = 120  # characters of a folder's; file systems take 255 bytes


@dataclass(frozen=True)
class Case:
    method: str
    settings: tuple[tuple[str, object], ...] = ()  # key, value

    @property
    def label(self) -> str:
        """Tells cases apart, and is read by people."""
        return ", ".join(filter(None, (self.method, *self.words)))

    @property
    def words(self) -> list[str]:
        """What is set, without a prefix that the method's name makes superfluous."""
        own = (f"{METHOD}.", f"{self.method}.")
        return [
            f"{next((key.removeprefix(p) for p in own if key.startswith(p)), key)}={shown(value)}"
            for key, value in self.settings
        ]

    def folder(self, seed: int) -> str:
        """The name of a run's folder, the same whatever else is varied."""
        plain = "-".join([self.method, *self.words])
        name = re.sub(r"[^A-Za-z0-9._=+-]", "_", plain)
        if name != plain or len(name) > _LONGEST_NAME:  # what was cut may be all that differs
            name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
        return f"{name}-seed{seed}"


def cases_of(
    methods: Sequence[str], vary: Mapping[str, Sequence[object]], own: OwnOptions
) -> Iterator[Case]:
    """Method by method, all combinations of what reaches it: FL has no activation cap to vary."""
    for method in methods:
        keys = [key for key in vary if reaches(key, method, own)]
        for values in product(*(vary[key] for key in keys)):
            yield Case(method, tuple(zip(keys, values, strict=True)))


def shown(value: object) -> str:
    """A value as the user would write it."""
    return value if isinstance(value, str) else json.dumps(value)
