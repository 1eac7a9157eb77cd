"""`make bench`: runs every measurement, prints the figures and writes them with their origin.

Those that are named replace their figures in the file; the others stay. A measurement's module is
imported when it is its turn: those of simulations need neither gRPC nor anything to draw with.

python -m benchmarks.run [NAME ...] [--rounds N] [--out FILE]
"""

from __future__ import annotations

import argparse
from importlib import import_module
from inspect import signature
from pathlib import Path

from benchmarks.figures import RESULTS, keep, show
from benchmarks.workloads import WORKLOADS

MEASUREMENTS: dict[str, tuple[str, tuple[str, ...]]] = {  # the module, and what `measure` is given
    **{name: ("fl_against_loop", (name,)) for name in WORKLOADS},
    "fedoptima_workers": ("fedoptima_workers", ()),
    "modelled_workers": ("modelled_workers", ()),
    "dry_scale": ("dry_scale", ()),
    "start_up": ("start_up", ()),
    "network_device": ("network_device", ()),
    "network_server": ("network_server", ()),
    "wire": ("wire", ()),
    "network_memory": ("network_memory", ()),
    "report_size": ("report_size", ()),
    "resume_cost": ("resume_cost", ()),
    "step_costs": ("step_costs", ()),
    "optimizer_steps": ("optimizer_steps", ()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], metavar="NAME")
    parser.add_argument("--rounds", type=int, help="of what is run in turn")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for name in arguments.names or list(MEASUREMENTS):
        module, given = MEASUREMENTS[name]
        measure = import_module(f"benchmarks.{module}").measure
        rounds = {"rounds": arguments.rounds} if "rounds" in signature(measure).parameters else {}
        figures = measure(*given, **(rounds if arguments.rounds else {}))
        show(name, figures)
        keep(name, figures, arguments.out)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
