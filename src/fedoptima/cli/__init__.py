"""The command line: a thin layer over `experiments`, `comparison`, `reporting` and the others.

What a command needs is imported inside it, so that help and mistakes are answered at once: torch
alone takes seconds to load. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import os

__all__ = ["main"]


def main() -> None:
    try:
        from fedoptima.cli.app import main as command
    except KeyboardInterrupt:  # before there is anybody to explain it
        os._exit(130)
    command()
