"""Errors that are meant for the user: one paragraph on stderr, no traceback.

Exit codes: 2 the input cannot work, 1 the run failed, 130 the user ended it. Anything else is a bug
and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer
from rich.text import Text

from fedoptima.cli.console import stderr
from fedoptima.core.errors import ConfigError, FedOptimaError

CONFIG, FAILED, INTERRUPTED = 2, 1, 130

Parameters = ParamSpec("Parameters")


def explained(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    @wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except FedOptimaError as error:
            complain(str(error))
            raise typer.Exit(CONFIG if isinstance(error, ConfigError) else FAILED) from error
        except KeyboardInterrupt as error:
            stderr().print("stopped")
            raise typer.Exit(INTERRUPTED) from error

    return run


def complain(message: str) -> None:
    text = Text.assemble(("error: ", "bold red"), (message, "red"))
    stderr().print(text, soft_wrap=True)


def warn(message: str) -> None:
    stderr().print(Text.assemble(("warning: ", "bold yellow"), message), soft_wrap=True)
