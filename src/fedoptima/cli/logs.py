"""What server and devices say while they run: to stderr, and to a file where there is a run."""

from __future__ import annotations

import logging
from pathlib import Path

from fedoptima.cli.console import stderr

_FORMAT = "%(asctime)s %(message)s"
_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Console(logging.Handler):
    """Through rich, so that lines go above a live table and not into it."""

    def emit(self, record: logging.LogRecord) -> None:
        style = {logging.ERROR: "red", logging.WARNING: "yellow"}.get(record.levelno)
        stderr().print(self.format(record), style=style, soft_wrap=True)


def log_to(folder: Path | None = None, name: str = "", *, quiet: bool = False) -> None:
    """``quiet``: only warnings on stderr; the file has everything."""
    root = logging.getLogger("fedoptima")
    root.setLevel(logging.INFO)
    root.handlers.clear()
    console = _Console(logging.WARNING if quiet else logging.INFO)
    console.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
    root.addHandler(console)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(folder / f"{name}.log")
        file.setFormatter(logging.Formatter(_FILE_FORMAT))
        root.addHandler(file)
