"""How the simulator scales: time per event of a dry FedOptima run, 100 devices against 10,000.

Both runs have about a million events. The time includes everything: set-up of the devices,
planning, trace digest, accounting. Beside it: what an event costs by part (`event_costs`), and from
the command line a run of 100,000 devices and 10 million events with its trace, then its report.
``python -m benchmarks.dry_scale`` measures the large run alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import fedoptima
from benchmarks import event_costs
from benchmarks.noise import images

SPEEDS = event_costs.SPEEDS

# One sample each of Tiny ImageNet, which need not be there.
LARGE = """
name = "hundred-thousand"
[model]
name = "vgg5"
[data]
name = "tiny_imagenet"
directory = "no-data"
partition = { kind = "iid" }
[fleet]
server.gflops = 150000
devices = [
  { name = "a", count = 25000, gflops = 1.5 }, { name = "b", count = 25000, gflops = 3 },
  { name = "c", count = 25000, gflops = 6 }, { name = "d", count = 25000, gflops = 9 },
]
[training]
batch_size = 5
iterations = 7
[stop]
rounds = 3
"""
MOST_SECONDS, MOST_BYTES = 300.0, 4 * 2**30


def dry_run(devices: int, rounds: int) -> tuple[int, float]:
    groups = [
        {"name": f"group{i}", "count": devices // len(SPEEDS), "gflops": speed}
        for i, speed in enumerate(SPEEDS)
    ]
    data = images(samples=5 * devices, size=8)
    start = time.perf_counter()
    result = fedoptima.simulate(
        model="vgg5",
        data=data,
        fleet={"server": {"gflops": 150.0 * devices / 100}, "devices": groups},
        training={"batch_size": 5, "iterations": 10},
        stop={"rounds": rounds},
        dry=True,
    )
    return result.events, time.perf_counter() - start


def command(folder: Path, *arguments: str) -> dict[str, float]:
    """Run one of our commands on one core; its time, its CPU time and the most memory it held."""
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with open("out.json", "wb") as out:
            os.dup2(out.fileno(), 1)
        os.execv(sys.executable, [sys.executable, "-m", "fedoptima", *arguments])
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"fedoptima {' '.join(arguments)} failed ({status})")
    return {
        "seconds": time.perf_counter() - start,
        "CPU seconds": used.ru_utime + used.ru_stime,
        "peak MiB": used.ru_maxrss / 1024,
    }


def large() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recipe.toml").write_text(LARGE)
        run = command(
            folder, "simulate", "--dry", "--json", "--quiet", "--out", "run", "recipe.toml"
        )
        events = json.loads((folder / "out.json").read_text())["events"]
        trace = (folder / "run" / "trace.jsonl.gz").stat().st_size
        report = command(folder, "report", "run", "--out", "report.html")
        page = (folder / "report.html").stat().st_size
    return {
        "devices": 100_000,
        "events": events,
        **run,
        "microseconds per event": 1e6 * run["CPU seconds"] / events,
        "of the seconds allowed": run["CPU seconds"] / MOST_SECONDS,
        "of the memory allowed": run["peak MiB"] * 2**20 / MOST_BYTES,
        "trace MB": trace / 1e6,
        "report": {**report, "MB": page / 1e6},
    }


def measure() -> dict[str, object]:
    few = min((dry_run(100, 320) for _ in range(3)), key=lambda run: run[1])
    many = min((dry_run(10_000, 4) for _ in range(3)), key=lambda run: run[1])
    per_event = [seconds / events for events, seconds in (few, many)]
    return {
        "what": "time per event, 10,000 devices against 100 (dry, about a million events each)",
        "ratio": per_event[1] / per_event[0],
        "at most": 2.0,
        "events": [few[0], many[0]],
        "microseconds per event": [1e6 * seconds for seconds in per_event],
        "by part, 100 devices": event_costs.table(),
        "command line, 100,000 devices": large(),
    }


if __name__ == "__main__":
    print(json.dumps(large(), indent=1))
