"""Train one neural network across uneven devices and a server, with neither side waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedoptima.version import __version__

if TYPE_CHECKING:
    from fedoptima.api import (
        Comparison,
        ConfigError,
        FedOptimaError,
        Interrupted,
        Result,
        compare,
        load_recipe,
        resume,
        resume_comparison,
        simulate,
    )

__all__ = [
    "Comparison",
    "ConfigError",
    "FedOptimaError",
    "Interrupted",
    "Result",
    "__version__",
    "compare",
    "load_recipe",
    "resume",
    "resume_comparison",
    "simulate",
]


def __getattr__(name: str) -> object:
    """`import fedoptima` is quick: torch is loaded when something is first used."""
    if name in __all__:
        from fedoptima import api

        return getattr(api, name)
    raise AttributeError(f"module 'fedoptima' has no attribute {name!r}")
