"""Errors that are meant for the user: one paragraph on stderr, no traceback.

Exit codes: 2 the input cannot work, 1 the run failed, 130 the user ended it. Anything else is a bug
and keeps its traceback.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import NoReturn, ParamSpec

import typer
from rich.text import Text

from fedoptima.core.errors import ConfigError, FedOptimaError
from fedoptima.display.console import NO_ROOM, stderr
from fedoptima.display.wording import at_the_command_line

CONFIG, FAILED, INTERRUPTED = 2, 1, 130

Parameters = ParamSpec("Parameters")


def explained(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    @wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            with at_the_command_line():
                command(*args, **kwargs)
        except FedOptimaError as error:
            complain(str(error))
            raise typer.Exit(CONFIG if isinstance(error, ConfigError) else FAILED) from error
        except OSError as error:
            what = error.filename or "the output or a file"
            if error.errno in NO_ROOM or error.errno == errno.EROFS:
                complain(f"{what} cannot be written: {error.strerror}")
            elif error.errno in (errno.EACCES, errno.EPERM) and error.filename:
                complain(f"{what}: {error.strerror}")
            else:
                raise
            raise typer.Exit(FAILED) from error
        except (KeyboardInterrupt, RuntimeError) as error:
            # What Ctrl-C breaks while a class is made, Python 3.11 calls a RuntimeError.
            if isinstance(error, RuntimeError) and not isinstance(
                error.__cause__, KeyboardInterrupt
            ):
                raise
            stderr().print("stopped")
            raise typer.Exit(INTERRUPTED) from error

    return run


def complain(message: str) -> None:
    text = Text.assemble(("error: ", "bold red"), (_paragraph(message), "red"))
    stderr().print(text, soft_wrap=True)


def warn(message: str) -> None:
    text = Text.assemble(("warning: ", "bold yellow"), _paragraph(message))
    stderr().print(text, soft_wrap=True)


def _paragraph(message: str) -> str:
    """Further lines are indented: whatever they quote, they do not look like another message."""
    return message.replace("\n", "\n  ")


def leave_at_once(code: int) -> NoReturn:
    """End this process once libraries have cleared away what they leave on disk.

    Python itself would then wait for what a thread still computes, though its result is not wanted
    any more, and take torch apart, which takes longer than many a command.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has gone
            if stream is not None:
                stream.flush()
    os._exit(code)
