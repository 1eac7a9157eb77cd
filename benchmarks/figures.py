"""Figures as they are printed and kept: each measurement's own, with date, machine and versions."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

import fedoptima

RESULTS = Path("benchmarks/results.json")
_BOUNDS = ("at most", "at least")


def machine() -> dict[str, object]:
    return {
        "date": datetime.date.today().isoformat(),
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),  # that it may use
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedoptima": fedoptima.__version__,
    }


def show(name: str, figures: Mapping[str, object]) -> None:
    print(f"{name}: {figures['what']}")
    bounds = ", ".join(f"{bound} {figures[bound]}" for bound in _BOUNDS if bound in figures)
    print(f"  {figures['ratio']:.3f} ({bounds})", flush=True)
    for key, value in figures.items():
        if key not in ("what", "ratio", "machine", *_BOUNDS):
            print(f"  {key}: {_short(value)}", flush=True)


def keep(name: str, figures: Mapping[str, object], out: Path = RESULTS) -> None:
    """Replace a measurement's figures in the file; the others stay."""
    kept = json.loads(out.read_text()) if out.exists() else {}
    kept[name] = {**figures, "machine": machine()}
    out.write_text(json.dumps(kept, indent=1) + "\n")


def _short(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(str(_short(item)) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    return value
