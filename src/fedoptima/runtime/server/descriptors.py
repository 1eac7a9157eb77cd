"""How many connections a server can hold: each takes one of the process's open files."""

from __future__ import annotations

import resource
from typing import Final

_OWN: Final = 128  # for the run's files, the page beside it, the event loop
_FEWEST: Final = 16
_MOST: Final = 10_000  # connections, wherever the system allows more and no more are wanted
_UNLIMITED: Final = 1 << 20  # what Linux takes where it says that there is no limit


def raise_limit() -> int:
    """Raise the soft limit of open files, often 1,024, to the hard one, which a process may do for
    itself; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS does not take what it says
        return soft
    return wanted


def most_connections(devices: int = 0, gateways: int = 0) -> int:
    """Of one process: as many as the system lets it have, less what it needs itself.

    ``devices``: how many are wanted, of all gateways together. A quarter more: some come back
    before they are gone, and the system does not divide them evenly.
    """
    part = -(-devices // max(1, gateways))
    wanted = max(_MOST, part + part // 4)
    return max(_FEWEST, min(wanted, raise_limit() - _OWN))


def shortage(devices: int, gateways: int = 0) -> str:
    """A warning if not all devices can be connected at a time, or an empty string."""
    limit, processes = raise_limit(), max(1, gateways)
    room = processes * (limit - _OWN)
    if devices <= room:
        return ""
    needed = -(-devices // processes) + _OWN
    each = " each" if gateways else ""
    return (
        f"{devices:,} devices need {needed:,} open files{each}, and the system allows {limit:,}: "
        f"{devices - room:,} of them cannot connect. Raise the hard limit (ulimit -Hn {needed}, "
        f"LimitNOFILE={needed} of a systemd unit)"
    )
