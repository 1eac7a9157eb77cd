"""A barrier of a few devices, by hand."""

from __future__ import annotations

from fedoptima.core.aggregation import Decision, Offer
from fedoptima.core.barrier import Barrier
from fedoptima.core.types import NodeId
from tests.support.bench import update

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


def offer(
    policy: Barrier,
    device: NodeId,
    *,
    based_on: int = 0,
    version: int = 0,
    samples: int = 1,
    now: float = 0.0,
) -> Decision:
    policy.handed_in(device)
    handed_in = update(f"{device}/0/1", version=based_on)
    decision = policy.offer(Offer(device, handed_in, samples, version, now))
    policy.check()
    return decision


def leaves(policy: Barrier, device: NodeId, now: float = 0.0, *, awaited: bool = False) -> Decision:
    policy.left(device, now, awaited=awaited)
    policy.check()
    decision = policy.reconsider(now)
    policy.check()
    return decision


def weights(decision: Decision) -> dict[NodeId, float]:
    assert decision.merge is not None
    return {part.device: part.weight for part in decision.merge.parts}
