"""What simulated FL costs on two cores, against a bare loop in two processes.

Three workloads: 16 clients with 500 images, 128 with 62, and 128 with one step of 2 images each,
where little is left but the simulator's own cost; the last also while another process uses a core.
The floor (`two_process_loop`) trains the same clients on the same batches with the same momentum
and averages with the same weights; at the end both have the same model up to the order of sums,
which is checked. Both sides are processes of their own that have loaded the data before their
clocks start; both start and end their workers and evaluate the final model inside it. Times are of
rounds run in turn, so that a busy machine slows both; memory is the peak of a side's processes
together, in runs that are not timed.

python -m benchmarks.fl_against_loop [WORKLOAD ...] [--rounds 7] [--workers 2] [--no-memory]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.figures import show
from benchmarks.sides import Comparison, Figures, Side, one_core_in_use
from benchmarks.workloads import WORKLOADS, store_images

ROUNDS = 7
OWN_COST = "fl_128x2"
BOUNDS = {**dict.fromkeys(WORKLOADS, 1.05), OWN_COST: 1.3}
BUSY_BOUND = 2.5
MEMORY_BOUND = 1.2


def sides(workers: int = 2) -> list[Side]:
    return [
        Side("simulated", "benchmarks.simulated", workers, one_thread=False),
        Side("loop", "benchmarks.two_process_loop", workers),
    ]


def measure(
    name: str, rounds: int = ROUNDS, workers: int = 2, *, memory: bool = True
) -> dict[str, object]:
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "images.pt")
        what = store_images(workload, data)
        comparison = Comparison(workload, sides(workers), data)
        comparison.run(rounds)
        found = figures(comparison, BOUNDS[name])
        if memory:
            comparison.weigh()
            found |= memory_figures(comparison)
        if name == OWN_COST:
            found |= _busy(Comparison(workload, sides(workers), data), comparison, rounds)
    return {**found, "images": what, "workers": workers, "rounds": rounds}


def figures(comparison: Comparison, bound: float) -> dict[str, object]:
    ratios = comparison.ratios("simulated", "loop")
    simulated, loop = comparison.figures["simulated"], comparison.figures["loop"]
    return {
        "what": f"{comparison.workload}: simulated against a bare loop, the same processes",
        "ratio": statistics.median(ratios),
        "at most": bound,
        "ratios": ratios,
        "median seconds": {"simulated": simulated.median, "loop": loop.median},
        "simulated seconds": simulated.seconds,
        "loop seconds": loop.seconds,
        "whole call of simulate, seconds": [more["call"] for more in simulated.more],
        "processor time": _processor_time(simulated, loop),
    }


def _processor_time(simulated: Figures, loop: Figures) -> dict[str, object]:
    """Of all processes, within the clock: it depends less on who else uses the machine."""
    ours, theirs = ([float(str(more["processor"])) for more in s.more] for s in (simulated, loop))
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "simulated seconds": ours,
        "loop seconds": theirs,
    }


def memory_figures(comparison: Comparison) -> dict[str, object]:
    simulated, loop = comparison.figures["simulated"], comparison.figures["loop"]
    return {
        "memory": {
            "ratio": simulated.peak_mb / loop.peak_mb,
            "at most": MEMORY_BOUND,
            "simulated peak MB": simulated.peak_mb,
            "loop peak MB": loop.peak_mb,
        }
    }


def _busy(comparison: Comparison, quiet: Comparison, rounds: int) -> dict[str, object]:
    with one_core_in_use():
        comparison.run(rounds)
    simulated, loop = comparison.figures["simulated"], comparison.figures["loop"]
    return {
        "while another process uses one core": {
            "ratio to the floor of the quiet rounds": simulated.median
            / quiet.figures["loop"].median,
            "at most": BUSY_BOUND,
            "ratio to the floor that shares the machine too": statistics.median(
                comparison.ratios("simulated", "loop")
            ),
            "simulated seconds": simulated.seconds,
            "loop seconds": loop.seconds,
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*WORKLOADS, []], metavar="WORKLOAD")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-memory", action="store_true")
    asked = parser.parse_args()
    for name in asked.names or WORKLOADS:
        show(name, measure(name, asked.rounds, asked.workers, memory=not asked.no_memory))


if __name__ == "__main__":
    main()
