"""An update is offered to a policy, by hand."""

from __future__ import annotations

from fedoptima.core.aggregation import AggregationPolicy, Decision, Offer
from fedoptima.core.types import NodeId
from tests.support.bench import update


def offer(
    policy: AggregationPolicy,
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


def weights(decision: Decision) -> dict[NodeId, float]:
    assert decision.merge is not None
    return {part.device: part.weight for part in decision.merge.parts}
