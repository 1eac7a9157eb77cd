"""The report of a run of a million events: how long it takes to make, and how large it is.

The simulated devices are sixteen, so that every lane is drawn; their spans are far too many to be
kept one by one. Advice is left out: its simulations do not depend on the trace.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import fedoptima
from benchmarks.noise import images
from fedoptima.reporting.report import report

EVENTS = 1_000_000
SPEEDS = (1.5, 3.0, 6.0, 9.0)
_MOST_BYTES = 10e6


def long_run(folder: Path, epochs: float) -> tuple[int, float]:
    """Its events, and its epochs: a round is finished that was begun."""
    groups = [
        {"name": f"group{i}", "count": 4, "gflops": speed, "mbps": 50.0}
        for i, speed in enumerate(SPEEDS)
    ]
    result = fedoptima.simulate(
        model="vgg5",
        data=images(samples=50_000, size=8),
        fleet={"server": {"gflops": 150.0}, "devices": groups},
        training={"batch_size": 5},
        epochs=epochs,
        dry=True,
        out=folder,
    )
    return result.events, result.summary.epochs


def measure() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, epochs = long_run(folder / "sample", epochs=4.0)
        events, _ = long_run(folder / "run", epochs=1.1 * EVENTS * epochs / few)
        start, work = time.perf_counter(), time.process_time()
        made = report([folder / "run"], out=folder / "report.html", advice=False)
        seconds, work = time.perf_counter() - start, time.process_time() - work
    return {
        "what": "seconds for the report of a million events",
        "ratio": seconds,
        "at most": 30.0,
        "events": events,
        "processor seconds": work,
        "megabytes": made.nbytes / 1e6,
        "at most megabytes": _MOST_BYTES / 1e6,
    }
