"""How many gateways there may be, and how one's process is started."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from fedoptima.core.errors import ConfigError

ASK_TO_STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_GATEWAYS: Final = 64  # each is a process with torch in it


def check_gateways(count: int) -> None:
    if not 0 <= count <= MOST_GATEWAYS:
        raise ConfigError(
            f"--gateways {count}: must be from 0 to {MOST_GATEWAYS}; one for each core that is to "
            "take connections is enough"
        )


def start_process(descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """A process of `front`. What asks to stop is for the server, and comes to it alone, also while
    the process loads its modules: what is blocked here stays blocked there."""
    command = [sys.executable, "-P", "-m", "fedoptima.runtime.gateway.front"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASK_TO_STOP)
    try:
        return subprocess.Popen(
            [*command, *map(str, descriptors)], pass_fds=descriptors, stdin=subprocess.DEVNULL
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
