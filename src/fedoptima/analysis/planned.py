"""The one thing the accounts need from a plan: how large the server's side is.

A plan is written into the trace as JSON by the Pre-processor, which this layer does not import.
"""

from __future__ import annotations

import json


def server_side_bytes(plan: str) -> int:
    """Parameters and buffers behind the cut; 0 where nothing is split or the plan says nothing."""
    try:
        plain = json.loads(plan)
    except ValueError:
        return 0
    if not isinstance(plain, dict):
        return 0
    return sum(block["parameter_bytes"] for block in plain["blocks"][plain["split"] :])
