"""The command line as the target of a forked process. Imports nothing that takes time."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]  # where "tests.e2e.tiny" is found

# What the commands would load one by one, torch above all; none of it starts a thread.
HEAVY = [
    "torch.fx",
    "torch.utils.flop_counter",
    "grpc.aio",
    "rich.live",
    "tests.e2e.tiny",
    "fedoptima.experiments.join",
    "fedoptima.experiments.serve",
    "fedoptima.cli.commands.device",
    "fedoptima.cli.commands.server",
]


def run_command(log: Path, words: list[str]) -> None:
    """``fedoptima WORDS``; what it says goes to a file."""
    # A fork server that was started by `fedoptima run` in this process has these blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    sys.argv = ["fedoptima", *words]
    from fedoptima.cli.app import main

    try:
        main()
    except Exception:
        traceback.print_exc()
        raise
