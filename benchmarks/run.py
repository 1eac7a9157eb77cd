"""`make bench`: runs every measurement, prints the figures and writes them with their origin.

Those that are named replace their figures in the file; the others stay.

python -m benchmarks.run [NAME ...] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch

import fedoptima
from benchmarks import (
    dry_scale,
    fl_against_loop,
    network_device,
    network_memory,
    network_server,
    report_size,
    wire,
)

MEASUREMENTS: dict[str, Callable[[], dict[str, object]]] = {
    "fl_against_loop": fl_against_loop.measure,
    "dry_scale": dry_scale.measure,
    "network_device": network_device.measure,
    "network_server": network_server.measure,
    "wire": wire.measure,
    "network_memory": network_memory.measure,
    "report_size": report_size.measure,
}
_BOUNDS = ("at most", "at least")


def machine() -> dict[str, object]:
    return {
        "date": datetime.date.today().isoformat(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedoptima": fedoptima.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results.json"))
    arguments = parser.parse_args()
    names = arguments.names or list(MEASUREMENTS)
    kept = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    results: dict[str, object] = {name: kept[name] for name in MEASUREMENTS if name in kept}
    for name in names:
        figures = {**MEASUREMENTS[name](), "machine": machine()}
        results[name] = figures
        print(f"{name}: {figures['what']}")
        bounds = ", ".join(f"{bound} {figures[bound]}" for bound in _BOUNDS if bound in figures)
        print(f"  {figures['ratio']:.3f} ({bounds})", flush=True)
        for key, value in figures.items():
            if key not in ("what", "ratio", "machine", *_BOUNDS):
                print(f"  {key}: {_short(value)}", flush=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {arguments.out}")


def _short(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(str(_short(item)) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    return value


if __name__ == "__main__":
    main()
