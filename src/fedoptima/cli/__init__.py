"""The command line: a thin layer over `experiments`, `comparison`, `reporting` and the others.

What a command needs is imported inside it, so that help and mistakes are answered at once: torch
alone takes seconds to load. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import os

__all__ = ["main"]


def main() -> None:
    _open_what_is_closed()
    try:
        from fedoptima.cli.app import main as command
    except KeyboardInterrupt:  # before there is anybody to explain it
        os._exit(130)
    command()


def _open_what_is_closed() -> None:
    """Started without stdin, stdout or stderr, a file of the run would take its number, and what
    libraries in C print would be written into it."""
    for output in (0, 1, 2):
        try:
            os.fstat(output)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(opened, True)  # else it would be closed in worker processes
