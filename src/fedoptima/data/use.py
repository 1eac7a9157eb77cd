"""What a data set is loaded for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Use:
    column: str | None = None  # that it will be divided by: no feature of a table
    train_only: bool = False  # on a device, whose server has the test data


ANY_USE = Use()
