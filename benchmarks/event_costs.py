"""What an event of a dry run costs, by part: core, driver, accounting, trace.

The records of a run are given again to fresh cores, to the accounts and to a trace (digest and
line, no file), so each part is timed alone; the driver is a run without observers, less the cores.
CPU time of one process, the best of several rounds: other work on the machine counts little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fedoptima.analysis.accounts import Accounts
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.machine import Machine
from fedoptima.core.types import SERVER
from fedoptima.experiments.dry_setup import DryExperiment, prepare_dry
from fedoptima.experiments.given import Given
from fedoptima.methods.registry import METHODS
from fedoptima.trace.record import Record
from fedoptima.trace.writer import TraceWriter

SPEEDS = (1.5, 3.0, 6.0, 9.0)
PARTS = ("core", "driver", "accounting", "trace")


def experiment(method: str, devices: int, rounds: int) -> DryExperiment:
    """VGG-5 on the digits, a few samples each: what there is to learn does not matter."""
    groups = [
        {"name": f"group{i}", "count": devices // len(SPEEDS), "gflops": speed}
        for i, speed in enumerate(SPEEDS)
    ]
    table = {
        "model": {"name": "vgg5"},
        "data": {"name": "digits", "partition": {"kind": "iid"}},
        "method": {"name": method},
        "fleet": {"server": {"gflops": 1.5 * devices}, "devices": groups},
        "training": {"batch_size": 5, "iterations": 10},
        "stop": {"rounds": rounds},
    }
    prepared = prepare_dry(validate(Recipe, table, "benchmark"), Given())
    assert prepared is not None
    return prepared


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def once(prepared: DryExperiment) -> dict[str, float]:
    """Microseconds per event."""
    records: list[Record] = []
    prepared.assemble([records.append], dry=True).simulation.run()
    fresh = prepared.assemble([], dry=True).simulation
    machines: dict[str, Machine] = {n: device.machine for n, device in fresh.devices.items()}
    machines[SERVER] = fresh.server.machine

    def cores() -> None:
        for record in records:
            machines[record.node].handle(record.event, record.at)

    def given_to(observe: Callable[[Record], None]) -> Callable[[], None]:
        def observed() -> None:
            for record in records:
                observe(record)

        return observed

    core = seconds(cores)
    run = prepared.assemble([], dry=True).simulation.run
    found = {
        "core": core,
        "driver": seconds(run) - core,
        "accounting": seconds(given_to(Accounts().observe)),
        "trace": seconds(given_to(TraceWriter(None, {}).write)),
    }
    return {part: 1e6 * taken / len(records) for part, taken in found.items()}


def table(
    methods: Sequence[str] = tuple(METHODS), *, repeats: int = 3, devices: int = 100
) -> dict[str, dict[str, float]]:
    """By method, then by part: the least microseconds per event."""
    costs = {}
    for method in methods:
        prepared = experiment(method, devices, rounds=6)
        rounds = [once(prepared) for _ in range(repeats)]
        best = {part: min(found[part] for found in rounds) for part in PARTS}
        costs[method] = {**best, "sum": sum(best.values())}
    return costs


def main() -> None:
    print("| microseconds per event | " + " | ".join((*PARTS, "sum")) + " |")
    print("|---|" + "---:|" * (len(PARTS) + 1))
    for method, costs in table().items():
        print(f"| {method} | " + " | ".join(f"{cost:.1f}" for cost in costs.values()) + " |")


if __name__ == "__main__":
    main()
