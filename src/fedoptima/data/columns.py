"""What is known of training samples besides input and label: who made them, where they come from.

A column is read when a partition asks for it; most never are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedoptima.core.errors import ConfigError

if TYPE_CHECKING:  # a dry run of our own data does without
    from torch import Tensor

DEVICE = "device"  # the only column of data that were given for each device


@dataclass(frozen=True, eq=False)
class Columns:
    names: tuple[str, ...]
    source: Any  # source[name]: the values of all samples, in their order
    rows: Tensor | None = None  # those that are left; None: all
    by_device: bool = False  # each value is the name of the device that the sample was given for

    @classmethod
    def of(cls, values: dict[str, Sequence[object]], samples: int) -> Columns:
        for name, column in values.items():
            if len(column) != samples:
                raise ConfigError(
                    f"column {name!r} has {len(column)} values for {samples} training samples; "
                    "give one for each"
                )
        return cls(tuple(values), values)

    def take(self, rows: Tensor) -> Columns:
        kept = rows.cpu() if self.rows is None else self.rows[rows.cpu()]
        return replace(self, rows=kept)

    def read(self, name: str) -> list[object]:
        """Numbers and texts, one for each sample."""
        column = self.source[name]
        values = column.tolist() if hasattr(column, "tolist") else list(column)
        return values if self.rows is None else [values[row] for row in self.rows.tolist()]
