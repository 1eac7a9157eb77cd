"""Planting a bug: what it is called, and what is patched meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Patches = Iterable[tuple[Any, str, Any]]
MUTANTS: dict[str, Callable[[], Patches]] = {}


def mutant(patches: Callable[[], Patches]) -> Callable[[], Patches]:
    MUTANTS[patches.__name__.replace("_", " ")] = patches
    return patches


@contextmanager
def planted(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        for target, attribute, bug in MUTANTS[name]():
            stack.enter_context(patch.object(target, attribute, bug))
        yield


def unchecked(*args: object) -> None:
    pass
