"""Data whose items are not pairs (inputs, labels): a task's own function makes them that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedoptima.core.errors import ConfigError
from fedoptima.tasks.task import Reader


def as_read(data: Any, read: Reader | None) -> Any:
    """Arrays, a tuple or dict of them, are read at once; a dataset item by item."""
    if read is None:
        return data
    if isinstance(data, Mapping | tuple):
        return _pair(data, read)
    return ReadItems(data, read) if hasattr(data, "__getitem__") else ReadStream(data, read)


@dataclass(frozen=True, eq=False)
class ReadItems:
    data: Any
    read: Reader

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return _pair(self.data[number], self.read)


@dataclass(frozen=True, eq=False)
class ReadStream:
    data: Any
    read: Reader

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return (_pair(item, self.read) for item in self.data)


def _pair(item: Any, read: Reader) -> tuple[Any, Any]:
    try:
        made = read(item)
    except Exception as error:  # any error in a user's function concerns the user's code
        raise ConfigError(
            f"the task's read failed on an item of type {type(item).__name__} "
            f"({type(error).__name__}: {error})"
        ) from error
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise ConfigError(
            f"the task's read returned {type(made).__name__}; it must return (inputs, labels)"
        )
    return made[0], made[1]
