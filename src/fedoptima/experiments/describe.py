"""A run's facts, resolved once when it begins: how many devices, which cap, which options."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fedoptima.config.schema import Recipe
from fedoptima.core.method import Method
from fedoptima.trace.description import Mode, RunDescription
from fedoptima.version import __version__


@dataclass(frozen=True)
class Expected:
    """Devices, before any has joined."""

    devices: int  # K: how many the method's defaults are made for
    at_start: int  # how many the server waits for before it plans


def describe(
    recipe: Recipe,
    method: Method,
    mode: Mode,
    expected: Expected,
    *,
    dry: bool = False,
    material: Mapping[str, Mapping[str, Any]] | None = None,
) -> RunDescription:
    """``method``: as `build_method` built it for that number of devices."""
    name = recipe.method.name
    return RunDescription(
        mode=mode,
        dry=dry,
        devices=expected.devices,
        starts_with=expected.at_start,
        activation_cap=method.flow().cap,
        method=name,
        options=dict(method.resolved),
        recipe=recipe.model_dump(mode="json"),
        versions=versions(),
        material=material or {},
    )


def versions() -> dict[str, str]:
    return {
        "fedoptima": __version__,
        "torch": version("torch"),  # not by importing it: a dry run may do without
        "python": platform.python_version(),
    }
