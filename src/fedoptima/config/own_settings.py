"""A recipe's ``[methods.NAME]``: what one method of a comparison has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

TABLES = ("training", "split")  # of the recipe, that a method may have values of its own for


class OwnSettings(BaseModel):
    """What one method has of its own; its options stand beside `training` and `split`.

    It holds wherever the recipe is used with this method, and replaces the tables' own values.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    training: dict[str, Any] = Field(
        default={},
        description="Overrides the recipe's `training`, key by key.",
        examples=[{"device": {"learning_rate": 0.05}}],
    )
    split: dict[str, Any] = Field(
        default={},
        description="Overrides the recipe's `split`: the method then has its own split.",
        examples=[{"at": 2}],
    )

    @property
    def options(self) -> dict[str, object]:
        return dict(self.model_extra or {})

    @property
    def tables(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in TABLES}


def laid_over(table: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``table`` with the values of ``own``, tables in it key by key."""
    merged = dict(table)
    for key, value in own.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = laid_over(below, value)
        merged[key] = value
    return merged
