"""What a caller gave as Python objects, for processes that are not forked."""

from __future__ import annotations

import pickle
import sys

from fedoptima.analysis.formatting import listed
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.given import Given
from fedoptima.experiments.workers import can_fork


def pickled(given: Given, *, threads: int) -> bytes:
    try:
        found = pickle.dumps(given)
    except Exception as error:  # whatever a class of the user's raises
        raise cannot_be_sent(given, str(error), threads) from error
    main = sys.modules["__main__"]
    if b"__main__" in found and getattr(main, "__file__", None) is None:
        why = "defined in a notebook or an interactive session"
        raise cannot_be_sent(given, why, threads)
    return found


def cannot_be_sent(given: Given, why: str, threads: int = 1) -> ConfigError:
    names = [f"{name}=..." for name in given.names]
    alone = "; with threads=1 they need not be sent" if can_fork(1) and threads > 1 else ""
    return ConfigError(
        f"{listed(names)}: cannot be sent to other processes ({why}); define classes and functions "
        f"at the top level of a module that can be imported{alone}"
    )
