"""Values that no training survives: where they are, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError

_NAMED = 5  # rows that a message names; the others are counted
_AT_ONCE = 2**24  # elements that are examined in one piece


def rows_in_words(rows: Sequence[int]) -> str:
    """``row 3``, or ``rows 3, 8, 9, 12, 40 and 7 more``."""
    return f"row{'s' if len(rows) > 1 else ''} {in_words(rows)}"


def in_words(names: Sequence[object]) -> str:
    """``a, b, c``, or ``a, b, c, d, e and 7 more``."""
    named = ", ".join(str(name) for name in names[:_NAMED])
    return named + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def rows_not_finite(values: Tensor, *, at_once: int = _AT_ONCE) -> list[int]:
    """The samples (first dimension) that hold NaN or an infinite value."""
    if not (values.is_floating_point() or values.is_complex()) or not values.numel():
        return []
    found: list[int] = []
    step = max(1, at_once * len(values) // values.numel())
    for start in range(0, len(values), step):
        part = values[start : start + step]
        good = part.isfinite().reshape(len(part), -1).all(dim=1)
        if not good.all():
            found += (start + (~good).nonzero().flatten()).tolist()
    return found


def check_inputs(values: Tensor, where: str) -> None:
    rows = rows_not_finite(values)
    if rows:
        raise ConfigError(
            f"{where}: inputs are NaN or infinite in {rows_in_words(rows)}; correct or leave out "
            "these samples"
        )


def class_numbers(values: Sequence[object], where: str) -> Tensor:
    """Labels of a file as int64, if each is a whole number."""
    try:
        numbers = np.array([np.nan if value is None else value for value in values], np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: a label is not a number ({error})") from error
    bad = np.flatnonzero(~np.isfinite(numbers) | (numbers != np.floor(numbers)))
    if len(bad):
        raise ConfigError(
            f"{where}: labels are missing, NaN, infinite or not whole in "
            f"{rows_in_words(bad.tolist())}; correct or leave out these samples"
        )
    return torch.from_numpy(numbers.astype(np.int64))
