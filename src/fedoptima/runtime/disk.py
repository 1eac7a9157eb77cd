"""Whether a node can write what it should. Training never depends on it.

A disk that is full is said once, however many writes fail, and once more when all works again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import RLock

from fedoptima.core.events import DiskFailing, DiskWorks
from fedoptima.core.text import printable
from fedoptima.trace.plain_files import may_pass

Say = Callable[[DiskFailing | DiskWorks], object]


class Disk:
    """Told of every write that counts, by any thread."""

    def __init__(self, place: object, log: logging.Logger, say: Say = lambda _: None) -> None:
        """``place``: as a message names it. ``say`` is called by the thread whose write it was."""
        self.say = say
        self._place = place
        self._log = log
        self._failing: set[str] = set()  # what could not be written when it was tried last
        self.trouble: DiskFailing | None = None  # what was said, until all works again
        self._lock = RLock()  # held while it is said: what is said last is so

    def failed(self, what: str, error: OSError) -> None:
        why = printable(error.strerror or str(error))
        with self._lock:
            first = not self._failing
            self._failing.add(what)
            if first:
                way_out = ": make room" if may_pass(error) else ""
                self._log.error(
                    "%s: %s cannot be written (%s); training continues, and writing is tried "
                    "again%s",
                    *(self._place, what, why, way_out),
                )
                self.trouble = DiskFailing(f"{what} cannot be written ({why})")
                self.say(self.trouble)

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Whether it was written; raises an error that is not the disk's."""
        try:
            write()
        except OSError as error:
            if not may_pass(error):
                raise
            self.failed(what, error)
            return False
        self.worked(what)
        return True

    def worked(self, what: str) -> None:
        with self._lock:
            if what not in self._failing:
                return
            self._failing.discard(what)
            if not self._failing:
                self._log.warning("%s: everything is written again", self._place)
                self.trouble = None
                self.say(DiskWorks())
