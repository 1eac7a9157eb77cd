"""What tracking needs beyond the base installation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedoptima.core.errors import ConfigError

_PACKAGES = ("prometheus_client", "tensorboard", "mlflow")


@contextmanager
def track_extra(option: str) -> Iterator[None]:
    """Imports inside fail with the command that mends it."""
    try:
        yield
    except ImportError as error:
        # torch's writer says what is missing in words of its own, without a name.
        named = (error.name or "tensorboard").partition(".")[0]
        if named not in _PACKAGES:
            raise
        package = named.replace("_", "-")
        raise ConfigError(f"{option} needs {package}: pip install 'fedoptima[track]'") from error
