"""What the network needs beyond the base installation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedoptima.core.errors import ConfigError


@contextmanager
def deploy_extra() -> Iterator[None]:
    """Imports inside fail with an install hint."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("grpc", "google", "cryptography"):
            raise
        raise ConfigError(
            f"running over the network needs {missing}: pip install 'fedoptima[deploy]'"
        ) from error
