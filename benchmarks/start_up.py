"""How long a command takes before it does anything: ``--help``, a dry run, a small simulation.

Medians of rounds in which the commands take turns, beside Python's own start with torch loaded. The
dry run is the demo's as a whole; a simulation has started when its first event is in its trace.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

RECIPE = Path(__file__).parents[1] / "recipes" / "demo_digits.toml"
BOUNDS = {"--help": 1.0, "dry run": 1.0, "simulation until its first event": 3.0}

UNTIL_THE_FIRST_EVENT = """
import sys, time
from fedoptima import simulate
class Begun(Exception): pass
def begun(): raise Begun
try:
    simulate(sys.argv[1], interrupted=begun)
except Begun:
    pass
"""


def timed(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def dry_run() -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        return timed("-m", "fedoptima", "simulate", "--dry", "-q", "--out", out, str(RECIPE))


COMMANDS: dict[str, Callable[[], float]] = {
    "--help": lambda: timed("-m", "fedoptima", "--help"),
    "dry run": dry_run,
    "simulation until its first event": lambda: timed("-c", UNTIL_THE_FIRST_EVENT, str(RECIPE)),
    "import torch": lambda: timed("-c", "import torch"),
}


def measure(rounds: int = 7) -> dict[str, object]:
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, run in COMMANDS.items():
            taken[name].append(run())
    medians = {name: statistics.median(each) for name, each in taken.items()}
    return {
        "what": "start-up in seconds: the largest part of its bound",
        "ratio": max(medians[name] / bound for name, bound in BOUNDS.items()),
        "at most": 1.0,
        "bounds": BOUNDS,
        "medians": medians,
        "all": taken,
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
