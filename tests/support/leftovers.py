"""What threads leave behind in a process, as a process forked from it would find it."""

from __future__ import annotations

import os
from pathlib import Path


class OfAThread:
    """In a cycle, as a channel or an event loop that a thread has left. To finalise it where that
    thread is not may take for ever; here it writes down which process does so."""

    def __init__(self, finalised: Path) -> None:
        self.itself = self
        self._finalised = finalised

    def __del__(self) -> None:
        with self._finalised.open("a") as file:
            file.write(f"{os.getpid()}\n")
