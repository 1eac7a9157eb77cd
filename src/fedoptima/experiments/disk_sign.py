"""A file that is in a run's folder while its server cannot write there.

Views of the run read files, and its trace has come to a stop. A file without content needs no room
on a full disk; if there is a little, it says what is wrong.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fedoptima.core.events import DiskFailing, DiskWorks
from fedoptima.trace.plain_files import open_plain


class DiskSign:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._shown = False

    def show(self, event: DiskFailing | DiskWorks) -> None:
        self._shown = isinstance(event, DiskFailing)
        with suppress(OSError):
            if isinstance(event, DiskWorks):
                self._path.unlink(missing_ok=True)
            else:
                with open_plain(self._path, "w", encoding="utf-8") as file:
                    file.write(event.error)

    def refresh(self) -> None:
        """To be called repeatedly: whoever looks sees that the server is alive."""
        if self._shown:
            with suppress(OSError):
                os.utime(self._path)
