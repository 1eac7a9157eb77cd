"""Digests of dry runs: virtual time and order depend on no machine, so they are kept in Git.

    python -m tools.golden            compare with tests/golden/digests.json
    python -m tools.golden --write    renew it, after a deliberate change of behaviour

A change of these digests is a change of what the product does. It comes in a commit of its own
that says why; a rearrangement of code leaves them as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import fedoptima

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "demo_digits.toml"
STORED = ROOT / "tests" / "golden" / "digests.json"

METHODS: dict[str, dict[str, Any]] = {
    name: {"name": name}
    for name in ("fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl", "cse_fsl")
}
VARIANTS: dict[str, dict[str, Any]] = {
    "fedoptima, fifo": {"name": "fedoptima", "scheduler": "fifo"},
    "fedoptima, no auxiliary network": {"name": "fedoptima", "auxiliary": "none"},
    "fedoptima, classifier": {"name": "fedoptima", "auxiliary": "classifier"},
    "fedoptima, deep": {"name": "fedoptima", "auxiliary": "deep"},
    "fedoptima, cap 4": {"name": "fedoptima", "activation_cap": 4},
    "fedoptima, polynomial": {"name": "fedoptima", "staleness": "polynomial", "alpha": 0.8},
    "fedoptima, reuse": {"name": "fedoptima", "reuse": {"batches": 16, "uses": 2}},
    "fedoptima, delay 2": {"name": "fedoptima", "max_delay": 2},
    "fl, waits for who left": {"name": "fl", "on_leave": "wait"},
    "fl, drops who left": {"name": "fl", "on_leave": "drop"},
    "splitfed, drops who left": {"name": "splitfed", "on_leave": "drop"},
    "pipar, its own split": {"name": "pipar", "own_split": True},
    "fedbuff, as published": {"name": "fedbuff", "average_staleness": 0.0},
}
CASES = METHODS | VARIANTS

# Devices leave, come back, lose the connection, hang, and their links change.
CHURN: dict[str, Any] = {"every": 2.0, "leave_probability": 0.3, "mbps": [2.5, 5.0]}
CHANGES: list[dict[str, Any]] = [
    {"at": 1.0, "device": "fast-1", "kind": "cut"},
    {"at": 1.5, "device": "fast-1", "kind": "restore"},
    {"at": 3.0, "device": "slow-2", "kind": "bandwidth", "mbps": 0.5},
]


def weather(name: str) -> dict[str, Any]:
    """The recipe's fleet, calm or with churn."""
    fleet = fedoptima.load_recipe(RECIPE).model_dump(exclude_unset=True)["fleet"]
    return fleet if name == "calm" else fleet | {"churn": CHURN, "changes": CHANGES}


def digest(case: str, name: str) -> str:
    result = fedoptima.simulate(
        RECIPE, method=CASES[case], fleet=weather(name), epochs=4, stop={"hours": 0.1}, dry=True
    )
    return result.trace_digest


def digests() -> dict[str, dict[str, str]]:
    return {case: {name: digest(case, name) for name in ("calm", "churn")} for case in CASES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="renew the stored digests")
    write = parser.parse_args().write
    found = digests()
    if write:
        STORED.parent.mkdir(exist_ok=True)
        STORED.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    stored = json.loads(STORED.read_text())
    changed = [case for case in found if found[case] != stored.get(case)]
    print("changed: " + ", ".join(changed) if changed else f"{len(found)} cases, all as stored")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
