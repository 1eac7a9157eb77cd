"""`make bench`: runs every measurement, prints the figures and writes them with their origin.

Those that are named replace their figures in the file; the others stay.

python -m benchmarks.run [NAME ...] [--out FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import (
    dry_scale,
    fedoptima_workers,
    fl_against_loop,
    network_device,
    network_memory,
    network_server,
    report_size,
    resume_cost,
    start_up,
    step_costs,
    wire,
)
from benchmarks.figures import RESULTS, keep, show

MEASUREMENTS: dict[str, Callable[[], dict[str, object]]] = {
    **{name: partial(fl_against_loop.measure, name) for name in fl_against_loop.BOUNDS},
    "fedoptima_workers": fedoptima_workers.measure,
    "dry_scale": dry_scale.measure,
    "start_up": start_up.measure,
    "network_device": network_device.measure,
    "network_server": network_server.measure,
    "wire": wire.measure,
    "network_memory": network_memory.measure,
    "report_size": report_size.measure,
    "resume_cost": resume_cost.measure,
    "step_costs": step_costs.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], metavar="NAME")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for name in arguments.names or list(MEASUREMENTS):
        figures = MEASUREMENTS[name]()
        show(name, figures)
        keep(name, figures, arguments.out)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
