"""What does a batch over the network cost in two revisions? CPU time, in pairs on this machine.

    python -m tools.compare_costs HEAD~3 HEAD --pairs 20
    python -m tools.compare_costs HEAD .          # "." is the working tree
    python -m tools.compare_costs HEAD . --program many_devices --seconds 40 --pairs 5

Runs the benchmarks network_server (the server's process alone) and wire (both processes) of each
revision in turn, and prints the median of the pairs' ratios. CPU time (user and system) says what a
change costs also where the wall clock hides it behind waiting. many_devices is a server with 60
devices that send 40 small batches a second: a minute longer than it measures, so only if asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.revisions import checked_out

# Run in a revision's own tree. The server's clock starts when it begins to listen and stops before
# its trace is read; both sums are of the whole process, gRPC's and torch's threads included.
PROGRAMS = {
    "network_server": """
import json, sys, time, torch
from benchmarks import network_server as bench
bench.SECONDS = float(sys.argv[1])
torch.set_num_threads(1)
marks, steps, replaying, read_trace = [], [], bench.replaying, bench.read_trace
def started(*arguments):
    background = replaying(*arguments)
    def begin(address):
        marks.append(time.process_time())
        return background(address)
    return begin
def counted(path):
    marks.append(time.process_time())
    for record in read_trace(path):
        if isinstance(record.event, bench.JobDone):
            steps.append(isinstance(record.event.job, bench.ServerStep))
        yield record
bench.replaying, bench.read_trace = started, counted
setup = bench.build()
bench.over_the_network(setup, bench.stored_batch(setup, bench.sides_of(setup)))
print(json.dumps(1e3 * (marks[1] - marks[0]) / sum(steps)))
""",
    "wire": """
import asyncio, json, multiprocessing, os, sys, time
from benchmarks import wire as bench
def cpu():
    seconds = time.process_time()
    for child in multiprocessing.active_children():
        fields = open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds
async def measure():
    async with bench.connection() as channel:
        await bench.timed(bench.send_messages(channel))
        start, until, batches = cpu(), time.monotonic() + float(sys.argv[1]), 0
        while time.monotonic() < until:
            await bench.timed(bench.send_messages(channel))
            batches += bench.BATCHES
        print(json.dumps(1e3 * (cpu() - start) / batches))
if __name__ == "__main__":
    asyncio.run(measure())
""",
    "many_devices": """
import json, sys
from benchmarks import many_devices as bench
if __name__ == "__main__":
    found = bench.measure(60, seconds=float(sys.argv[1]), idle=8.0, warm_up=5.0, rate=40.0)
    print(json.dumps(found["CPU of a batch, ms"]))
""",
}
QUICK = ("network_server", "wire")


def cost(tree: Path, program: str, seconds: float) -> float:
    """Milliseconds of CPU time a batch."""
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"  # a file: processes started by it import it again
        file.write_text(PROGRAMS[program], encoding="utf-8")
        command = [sys.executable, str(file), str(seconds)]
        done = subprocess.run(
            command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time a batch in two revisions, in pairs.")
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--program", action="append", choices=PROGRAMS, help="may be given again")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    asked = parser.parse_args()
    with checked_out(asked.before) as before, checked_out(asked.after) as after:
        for program in asked.program or QUICK:
            old, new = list[float](), list[float]()
            for pair in range(asked.pairs):
                sides = [(before, old), (after, new)]
                for tree, costs in sides if pair % 2 == 0 else reversed(sides):
                    costs.append(cost(tree, program, asked.seconds))
                print(f"{program} {pair + 1}: {old[-1]:.3f} ms, {new[-1]:.3f} ms", flush=True)
            ratios = sorted(b / a for a, b in zip(old, new, strict=True))
            quarter = len(ratios) // 4
            print(
                f"{program}: {statistics.median(old):.3f} -> {statistics.median(new):.3f} ms of CPU"
                f" time a batch; ratio {statistics.median(ratios):.3f}, middle half"
                f" {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
