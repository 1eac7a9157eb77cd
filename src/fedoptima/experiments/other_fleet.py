"""A recipe's fleet with other speeds and links, as a recipe describes it."""

from __future__ import annotations

from typing import Any

from fedoptima.config.fleet import FleetConfig
from fedoptima.sim.fleet import described


def other_fleet(
    fleet: FleetConfig, *, scale: float, mbps: float, latency_ms: float, server_gflops: float
) -> dict[str, Any]:
    """``scale``: a factor on the devices' speeds; every link is the same, in each direction."""
    table = described(fleet).model_dump()
    table["scale"] *= scale
    table["server"]["gflops"] = server_gflops
    link = {"mbps": mbps, "up_mbps": None, "down_mbps": None, "latency_ms": latency_ms}
    table["devices"] = tuple(group | link for group in table["devices"])
    return table
