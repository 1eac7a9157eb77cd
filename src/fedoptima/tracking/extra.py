"""What tracking needs beyond the base installation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedoptima.core.errors import ConfigError

_PACKAGES = ("prometheus_client", "tensorboard", "mlflow")


@contextmanager
def track_extra(option: str) -> Iterator[None]:
    """Imports inside fail with an install hint."""
    try:
        yield
    except ImportError as error:
        # torch's writer raises an ImportError of its own, without the name of a module.
        named = (error.name or "tensorboard").partition(".")[0]
        if named not in _PACKAGES:
            raise
        package = named.replace("_", "-")
        raise ConfigError(f"{option} needs {package}: pip install 'fedoptima[track]'") from error
