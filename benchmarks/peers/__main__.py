"""Flower's simulation and pfl-research on the FL workloads, interleaved with ours and the floor.

All sides train the same VGG-5 on the same batches with the same steps, each client with one
thread and a new optimiser in every round, two at a time, and evaluate the model once at the end.
A side has loaded its data and started its workers before its clock starts. That all have done the
same is checked by their weights.

The peers need other versions of packages than our tests, so they have an environment of their own:

    python3 -m venv .venv-peers
    .venv-peers/bin/pip install -e '.[peers]' torch==2.13.0

    python -m benchmarks.peers [WORKLOAD ...] [--rounds 7] [--python FILE] [--out FILE]

A peer that is not there is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks import fl_against_loop
from benchmarks.figures import RESULTS, keep, show
from benchmarks.sides import Comparison, Side
from benchmarks.workloads import WORKLOADS, store_images

ENVIRONMENT = Path(".venv-peers/bin/python")
WORKLOAD_NAMES = ("fl_16x500", "fl_128x62")
# The distributions that are measured, the modules that have to be there, and the side.
PEERS = {
    "Flower": (("flwr", "ray"), "benchmarks.peers.flower"),
    "pfl-research": (("pfl",), "benchmarks.peers.pfl_research"),
}
_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in [*sys.argv[1:], "torch"]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


def find(python: Path) -> tuple[list[Side], dict[str, str], dict[str, str]]:
    """The peers that can run, their versions, and why the others cannot."""
    found: list[Side] = []
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name, (distributions, module) in PEERS.items():
        if not python.exists():
            missing[name] = f"there is no {python}; python -m benchmarks.peers --help says how"
            continue
        asked = [str(python), "-c", _VERSIONS, *distributions]
        there = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
        lacking = [distribution for distribution, version in there.items() if version is None]
        if lacking:
            missing[name] = f"{python} has no {', '.join(lacking)}"
            continue
        versions[name] = ", ".join(f"{key} {version}" for key, version in there.items())
        found.append(Side(name, module, python=str(python.absolute())))
    return found, versions, missing


def measure(name: str, peers: list[Side], rounds: int, *, memory: bool = True) -> dict[str, object]:
    # Their clients are made anew for every round, so ours keep no momentum either.
    workload = replace(WORKLOADS[name], keeps_momentum=False)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "images.pt")
        what = store_images(workload, data)
        comparison = Comparison(workload, [*fl_against_loop.sides(), *peers], data)
        comparison.run(rounds)
        if memory:
            comparison.weigh()
    figures = comparison.figures
    ratios = {side: comparison.ratios(side, "loop") for side in figures if side != "loop"}
    fastest = {peer.name: comparison.ratios("simulated", peer.name) for peer in peers}
    return {
        "what": f"{workload}: simulated against the fastest other simulator",
        "ratio": max((statistics.median(found) for found in fastest.values()), default=0.0),
        "simulated / peer": {
            peer: {"median": statistics.median(found), "all": found}
            for peer, found in fastest.items()
        },
        "side / loop": {
            side: {"median": statistics.median(found), "all": found}
            for side, found in ratios.items()
        },
        "seconds": {side: found.seconds for side, found in figures.items()},
        "peak MB": {side: found.peak_mb for side, found in figures.items()},
        "images": what,
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*WORKLOADS, []], metavar="WORKLOAD")
    parser.add_argument("--rounds", type=int, default=fl_against_loop.ROUNDS)
    parser.add_argument("--python", type=Path, default=ENVIRONMENT, help="the peers' interpreter")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    peers, versions, missing = find(asked.python)
    for name, reason in missing.items():
        print(f"{name} is left out: {reason}", file=sys.stderr)
    if not peers:
        return
    for name in asked.names or WORKLOAD_NAMES:
        figures = measure(name, peers, asked.rounds, memory=not asked.no_memory)
        figures |= {"versions": versions, "left out": missing}
        show(f"peers_{name}", figures)
        keep(f"peers_{name}", figures, asked.out)


if __name__ == "__main__":
    main()
