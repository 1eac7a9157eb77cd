"""What a second worker gains for FedOptima: 16 devices, VGG-5, against what it could gain at most.

Two workers need at least half the time of one, and at least the time of the server's steps, which
can only be taken one after another. That chain is measured in the same rounds by itself: the same
number of steps of the server's side in a bare loop of one thread, on batches of activations that
are in memory.

python -m benchmarks.fedoptima_workers [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.figures import show
from benchmarks.sides import Comparison, Side
from benchmarks.workloads import Workload, store_images

ROUNDS = 7
WORKLOAD = Workload(clients=16, samples=500, batch=50, method="fedoptima")
ONE, TWO, CHAIN = "1 worker", "2 workers", "server's chain"
SIDES = [
    Side(ONE, "benchmarks.simulated", 1, one_thread=False),
    Side(TWO, "benchmarks.simulated", 2, one_thread=False),
    Side(CHAIN, "benchmarks.server_chain", 1, same_weights=False),
]


def measure(rounds: int = ROUNDS) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "images.pt")
        what = store_images(WORKLOAD, data)
        comparison = Comparison(WORKLOAD, SIDES, data)
        comparison.run(rounds)
    one, two, chain = (comparison.figures[side.name] for side in SIDES)
    workers = [(SIDES[0], one), (SIDES[1], two)]
    steps, taken = chain.more[0]["steps"], one.more[0]["server_samples"]
    per_step = statistics.median(chain.seconds) / int(str(steps))
    needed = int(str(taken)) / WORKLOAD.batch
    # The chain's steps are a round number; the run's may differ by those that the end cut off.
    scaled = [seconds * needed / int(str(steps)) for seconds in chain.seconds]
    ratios = [
        seconds / max(single / 2, serial)
        for seconds, single, serial in zip(two.seconds, one.seconds, scaled, strict=True)
    ]
    return {
        "what": f"{WORKLOAD}: 2 workers against the larger of half of 1 worker and the chain",
        "ratio": statistics.median(ratios),
        "at most": 1.1,
        "ratios": ratios,
        "median seconds": {ONE: one.median, TWO: two.median, CHAIN: statistics.median(scaled)},
        "seconds with 1 worker": one.seconds,
        "seconds with 2 workers": two.seconds,
        "seconds of the server's chain": scaled,
        "processor seconds": {s.name: [m["processor"] for m in f.more] for s, f in workers},
        "server's steps": needed,
        "ms of a server's step": per_step * 1000,
        "blocks on the device": one.more[0]["split"],
        "images": what,
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    show("fedoptima_workers", measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
