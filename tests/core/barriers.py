"""A barrier of a few devices, by hand."""

from __future__ import annotations

from fedoptima.core.aggregation import Decision
from fedoptima.core.barrier import Barrier
from fedoptima.core.types import NodeId

A, B, C, D = (NodeId(name) for name in "abcd")


def barrier(
    *devices: NodeId, on_leave: str = "drop", timeout: float | None = None, round_: float = 0.0
) -> Barrier:
    """In a round of these devices, which began at 0."""
    made = Barrier(on_leave=on_leave, timeout=timeout)  # type: ignore[arg-type]
    made.planned(round_, 0.0)
    for device in devices or (A, B, C):
        assert not made.enters(device, 0.0)
    assert made.reconsider(0.0).begins == (devices or (A, B, C))
    made.check()
    return made


def leaves(policy: Barrier, device: NodeId, now: float = 0.0, *, awaited: bool = False) -> Decision:
    policy.left(device, now, awaited=awaited)
    policy.check()
    decision = policy.reconsider(now)
    policy.check()
    return decision
