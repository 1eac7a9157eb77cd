"""Is a command line one that fedoptima has?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache, partial

import typer.main

from fedoptima.cli.app import app

_all_commands = cache(partial(typer.main.get_command, app))


def mistakes_in(command: str) -> Iterator[str]:
    """Commands and options that fedoptima does not have."""
    found = _all_commands()
    words = shlex.split(command)[1:]
    while (commands := getattr(found, "commands", None)) and words and words[0][0] != "-":
        name = words.pop(0)
        if name not in commands:
            yield f"no command {name!r}"
            return
        found = commands[name]
    known = {
        text for parameter in found.params for text in (*parameter.opts, *parameter.secondary_opts)
    }
    known |= {"-h", "--help"}
    for word in words:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known:
            yield f"no option {option}"
