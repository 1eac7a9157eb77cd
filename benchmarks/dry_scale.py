"""How the simulator scales: time per event of a dry FedOptima run, 100 devices against 10,000.

Both runs have about a million events. The time includes everything: set-up of the devices,
planning, trace digest, accounting. The command line's run of 10,000 devices also writes its trace.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fedoptima
from benchmarks.noise import images

SPEEDS = (1.5, 3.0, 6.0, 9.0)

RECIPE = """
name = "ten-thousand"
[model]
name = "vgg5"
[data]
name = "benchmarks.noise:images"
samples = 50000
size = 8
partition = { kind = "iid" }
[fleet]
server.gflops = 15000
devices = [
  { name = "a", count = 2500, gflops = 1.5 }, { name = "b", count = 2500, gflops = 3 },
  { name = "c", count = 2500, gflops = 6 }, { name = "d", count = 2500, gflops = 9 },
]
[training]
batch_size = 5
iterations = 10
[stop]
rounds = 4
"""


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


def from_the_command_line() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "recipe.toml")
        recipe.write_text(RECIPE)
        out = Path(folder, "run")
        command = [sys.executable, "-m", "fedoptima", "simulate", "--dry", "--json", "--out"]
        start = time.perf_counter()
        done = subprocess.run(
            [*command, str(out), str(recipe)],
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - start
        trace = (out / "trace.jsonl.gz").stat().st_size
        events = json.loads(done.stdout)["events"]
    return {"events": events, "seconds": seconds, "trace MB": trace / 1e6}


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
        "command line, 10,000 devices": from_the_command_line(),
    }
