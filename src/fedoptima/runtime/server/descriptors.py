"""How many connections a server can hold: each takes one of the process's open files."""

from __future__ import annotations

import resource
from typing import Final

_OWN: Final = 128  # for the run's files, the page beside it, the event loop
_FEWEST: Final = 16
_MOST: Final = 10_000  # connections, wherever the system allows more


def most_connections() -> int:
    """As many as the system lets this process have, less what it needs itself.

    The soft limit, often 1,024, is raised to the hard one, which a process may do for itself.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST + _OWN if hard == resource.RLIM_INFINITY else min(hard, _MOST + _OWN)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    allowed = _MOST if soft == resource.RLIM_INFINITY else soft - _OWN
    return max(_FEWEST, min(_MOST, allowed))
