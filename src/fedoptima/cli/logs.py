"""What server and devices say while they run: on a console, and in a file where there is a run.

A warning about a device that is not in the run's records carries its name, as the attribute
``device``, so that a view can show it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fedoptima.core.text import printable

_FORMAT = "%(asctime)s %(message)s"
_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STYLES = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}
_MOST_COMPLAINTS = 100  # names come from outside
_MOST_CHARACTERS = 4_000  # of a line
_FRESH = 300.0  # seconds


class _OneLine(logging.Formatter):
    """A message is one line without control characters, whoever it quotes; so are a traceback's."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message, _MOST_CHARACTERS)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {printable(line, _MOST_CHARACTERS)}" for line in lines)


class _ConsoleHandler(logging.Handler):
    """Through rich, so that lines go above a live table and not into it."""

    def __init__(self, console: Console, level: int) -> None:
        super().__init__(level)
        self._console = console
        self.setFormatter(_OneLine(_FORMAT, "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        text = Text(self.format(record), _STYLES.get(record.levelno, ""))
        with suppress(OSError):  # a file, on a disk that is full
            self._console.print(text, soft_wrap=True)
            self._console.file.flush()


class _FileHandler(logging.Handler):
    """Lines for which there is no room are left out, and counted when there is."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path  # made by the first line
        self._left_out = 0
        self.setFormatter(_OneLine(_FILE_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{self.format(record)}\n"
        if self._left_out:
            text = f"({self._left_out} lines before this one could not be written)\n{text}"
        try:
            self._append(text.encode(errors="replace"))
        except OSError:
            self._left_out += 1
        else:
            self._left_out = 0

    def _append(self, text: bytes) -> None:
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            if file.write(text) != len(text):
                file.truncate(size)
                raise OSError(f"{self._path}: no room for a line")


class DeviceErrors(logging.Handler):
    """The last warning about each device, for a while."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last: dict[str, tuple[float, str]] = {}  # the latest comes last

    def emit(self, record: logging.LogRecord) -> None:
        device = getattr(record, "device", None)
        if device is None:
            return
        self._last.pop(device, None)
        self._last[device] = (record.created, printable(record.getMessage()))
        if len(self._last) > _MOST_COMPLAINTS:
            self._last.pop(next(iter(self._last)))

    def fresh(self) -> dict[str, str]:
        since = time.time() - _FRESH
        return {device: text for device, (at, text) in dict(self._last).items() if at >= since}


@contextmanager
def log_to_console(console: Console, level: int) -> Iterator[None]:
    with attached(_ConsoleHandler(console, level)):
        yield


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with attached(_FileHandler(path)):
        yield


@contextmanager
def attached(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger("fedoptima")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
        logger.setLevel(before)
