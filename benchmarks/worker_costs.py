"""Where the processor time of simulated FL goes: by process and kind of work.

The first round of a device apart from later ones: there the system has to provide its memory. What
a worker does between two jobs is reading its messages and writing reports. Processor time, so other
work on the machine counts little; the bare loop's own is told by `fl_against_loop`.

python -m benchmarks.worker_costs [fl_128x2]
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections import Counter
from pathlib import Path

import fedoptima
from benchmarks.workloads import WORKLOADS, recipe, store_images
from fedoptima.core.jobs import AddUp, ExportModel, FoldedMerge, FullStep, LoadModel, Merge
from fedoptima.sim.processes import worker
from fedoptima.sim.processes.messages import Done, Order

KINDS = {
    kind: kind.__name__ for kind in (LoadModel, FullStep, ExportModel, AddUp, Merge, FoldedMerge)
}
ROWS = [
    *(f"{kind}, {which}" for kind in KINDS.values() for which in ("first", "later")),
    *("other work", "between two jobs"),
]
WORKERS = 2
_TIMES, _COUNTS = (multiprocessing.RawArray("d", WORKERS * len(ROWS)) for _ in range(2))
_begun = multiprocessing.Value("i", 0)


class TimedWorker(worker._Worker):
    def run(self) -> None:
        with _begun.get_lock():
            self._place = _begun.value * len(ROWS)
            _begun.value += 1
        self._rounds = Counter[str]()
        self._last = time.process_time()
        super().run()

    def _execute(self, order: Order) -> Done:
        began = time.process_time()
        self._add("between two jobs", began - self._last)
        if isinstance(order.work, LoadModel | Merge):
            self._rounds[order.node] += 1
        done = super()._execute(order)
        self._last = time.process_time()
        which = "first" if self._rounds[order.node] <= 1 else "later"
        kind = KINDS.get(type(order.work))
        row = f"{kind}, {which}" if kind else "other work"
        self._add(row, self._last - began)
        return done

    def _add(self, row: str, seconds: float) -> None:
        place = self._place + ROWS.index(row)
        _TIMES[place] += seconds
        _COUNTS[place] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*WORKLOADS], default="fl_128x2")
    workload = WORKLOADS[parser.parse_args().name]
    worker._Worker = TimedWorker  # type: ignore[misc]  # workers are forked from this process
    first: list[float] = []

    def between_events() -> bool:
        if not first:
            first.append(time.process_time())
        return False

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "images.pt")
        store_images(workload, data)
        fedoptima.simulate(recipe(workload, data, workers=WORKERS), interrupted=between_events)
    driving = time.process_time() - first[0]
    print(f"{workload}, {WORKERS} workers: processor time\n")
    print("| work | times | ms each | s |\n|---|---:|---:|---:|")
    for number, row in enumerate(ROWS):
        count = sum(_COUNTS[number :: len(ROWS)])
        seconds = sum(_TIMES[number :: len(ROWS)])
        if count:
            print(f"| {row} | {count:.0f} | {1000 * seconds / count:.2f} | {seconds:.2f} |")
    print(f"| the driving process | | | {driving:.2f} |")
    print(f"| all | | | {driving + sum(_TIMES):.2f} |")


if __name__ == "__main__":
    main()
