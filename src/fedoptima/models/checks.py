"""The one way a builder refuses a number that cannot make a network."""

from __future__ import annotations

from fedoptima.core.errors import ConfigError


def at_least(smallest: int, model: str, **numbers: int) -> None:
    """Refuse the first of ``numbers`` that is below ``smallest``."""
    for name, value in numbers.items():
        if value < smallest:
            raise ConfigError(f"model {model}: {name} = {value}: must be at least {smallest}")
