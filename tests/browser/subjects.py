"""The runs that are looked at: sixteen uneven devices that come and go, really trained, on the
virtual clock."""

from __future__ import annotations

from pathlib import Path

from fedoptima.experiments.simulation import simulate
from tests.experiments.runs import arguments

DEVICES = 16
# So slow that this small network takes them hours.
FLEET = {
    "server": {"gflops": 2e-6},
    "devices": [
        {"name": "raspberry", "count": 6, "gflops": 4e-8, "mbps": 8e-5},
        {"name": "jetson", "count": 10, "gflops": 1.6e-7, "mbps": 8e-5, "latency_ms": 2.0},
    ],
    "churn": {"every": 1250.0, "leave_probability": 0.1, "mbps": [4e-5, 1.2e-4]},
}


def train(folder: Path, method: str = "fedoptima", **changes: object) -> Path:
    """A finished run of the small network; its folder."""
    usual: dict[str, object] = {"fleet": FLEET, "epochs": 6.0, "method": method, "out": folder}
    simulate(**arguments(**{**usual, **changes}))  # type: ignore[arg-type]
    return folder
