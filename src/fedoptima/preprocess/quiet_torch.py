"""What torch's compiler says about a model that it cannot follow: pages of graphs, on stderr.

A user is told in a sentence instead, or nothing where there is another way to cut the model.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import TextIOBase
from threading import get_ident
from typing import TextIO, cast


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Nothing that torch logs or prints on this thread is shown."""
    thread = get_ident()
    handlers = {id(h): h for logger in _loggers() for h in logger.handlers}.values()

    def of_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread

    for handler in handlers:
        handler.addFilter(of_another_thread)
    try:
        with redirect_stderr(cast(TextIO, _OfOtherThreads(sys.stderr, thread))):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(of_another_thread)


def _loggers() -> Iterator[logging.Logger]:
    for name, logger in logging.root.manager.loggerDict.copy().items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            yield logger


class _OfOtherThreads(TextIOBase):
    def __init__(self, stream: TextIO, thread: int) -> None:
        self._stream = stream
        self._thread = thread

    def write(self, text: str) -> int:
        return len(text) if get_ident() == self._thread else self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()
