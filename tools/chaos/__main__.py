"""Kill, stop, cut off and starve a server and its devices, as processes, and add everything up.

    python -m tools.chaos                       # three seeds of seven methods, minutes each
    python -m tools.chaos --seed 7 --method fl  # one run
    python -m tools.chaos --record docs/reliability.md

Each run has a server and three devices, every one behind a relay of its own, on small disks that
can be filled (for which the system must let this process mount them; else those faults are left
out). After every fault each device has to train and hand in again. At the end the run's sums
(sent, received, used, merged) must agree, its replay must be clean, and its accuracy within 2
points of the same run without faults. Ends with 1 if anything went wrong; its folder is kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tools.chaos.disk import can_mount, enter_namespace


def main() -> int:
    options = _options()
    enter_namespace()
    from tools.chaos.campaign import campaign  # what is heavy only after that
    from tools.chaos.report import record, rows, summary
    from tools.chaos.script import scripts

    disks, begun = can_mount(), time.monotonic()
    if not disks:
        print("no disk can be mounted here: faults of disks are left out", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=options.folder))

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {text}", file=sys.stderr, flush=True)

    outcomes = []
    for seed in range(options.seed, options.seed + options.seeds):
        played = scripts(seed, disks=disks)
        if options.methods:
            played = [script for script in played if script.method in options.methods]
        outcomes += campaign(played, folder, disks=disks, jobs=options.jobs, tell=tell)
    for row in rows(outcomes):
        print("  ".join((row[0].ljust(44), row[1].rjust(4), row[2].rjust(4), *row[3:])))
    print(summary(outcomes))
    if options.record is not None:
        command = f"python -m tools.chaos --seeds {options.seeds} --jobs {options.jobs}"
        record(options.record, outcomes, command)
    if any(outcome.problems for outcome in outcomes):
        print(f"what went wrong is in {folder}", file=sys.stderr)
        return 1
    folder.rmdir()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=3, help="how many [3]")
    parser.add_argument("--seed", type=int, default=1, help="the first one [1]")
    parser.add_argument("--method", action="append", dest="methods", help="only this one")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time [2]")
    parser.add_argument("--record", type=Path, help="write the tables into this Markdown file")
    parser.add_argument("--folder", type=Path, help="where runs are kept [the usual one]")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
