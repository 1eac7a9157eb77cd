"""Whatever the devices hold and however quick they are: what each has to say in the model.

At least 1,000 examples: pytest tests/sim/test_influence.py --hypothesis-profile thorough
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.events import Received
from fedoptima.core.jobs import Merge
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.methods.registry import METHODS
from fedoptima.testing.toy import BATCH
from fedoptima.testing.world import Description, Device, World

ASYNCHRONOUS = ("fedoptima", "fedasync", "fedbuff", "oafl")
FACTOR = 4  # as docs/decisions/0024 states it
devices = st.builds(
    Device,
    speed=st.floats(0.1, 10.0),
    bytes_per_second=st.sampled_from([1000.0, 4000.0, 100_000.0]),
    samples=st.one_of(st.integers(1, 10_000), st.integers(1, 40)),
)


def world(method: str, fleet: Sequence[Device]) -> World:
    """Long enough for the slowest to hand in a few times."""
    return World(
        Description(
            METHODS[method](len(fleet)),
            fleet,
            stop=StopRule(hours=60 / 3600),
            iterations=1,
        )
    )


def most(samples: Sequence[int], own: int) -> float:
    """The share of all influence that a device may have: 1 from the mean share on."""
    median = sorted(samples)[(len(samples) - 1) // 2]
    counted = [min(held, 10 * median) for held in samples]  # more is not believed
    own, total = min(own, 10 * median), sum(counted)
    size = own * len(samples) / total
    if size >= 1 or max(samples) - min(samples) < BATCH:
        return 1.0
    return min(1.0, FACTOR * own / (total - max(counted)) / (1 - size))


@pytest.mark.parametrize("method", ASYNCHRONOUS)
@given(fleet=st.lists(devices, min_size=2, max_size=5))
def test_every_device_has_influence_and_none_more_than_its_share_allows(
    method: str, fleet: list[Device]
) -> None:
    ran = world(method, fleet)
    ran.run(limit=200_000)
    handed_in = Counter(
        record.event.sender
        for record in ran.records
        if record.node == SERVER
        and isinstance(record.event, Received)
        and isinstance(record.event.message, ModelUpdate)
    )
    merges = [run.job for run in ran.jobs(SERVER, Merge) if isinstance(run.job, Merge)]
    weights: Counter[NodeId] = Counter()
    buffer = min(10, len(fleet))
    # FedBuff: a change of average staleness weighs 1, so one that is fresh weighs more.
    fresh = ((len(fleet) - 1) / buffer + 1) ** 0.5 if method == "fedbuff" else 1.0
    for merge in merges:
        assert sum(part.weight for part in merge.parts) <= fresh + 1e-9
        weights.update({part.device: 0.0 for part in merge.parts})
        for part in merge.parts:
            weights[part.device] += part.weight
    assert not ran.notes("update refused")
    waiting = 0 if method != "fedbuff" else buffer  # at most
    samples = [device.samples for device in fleet]
    total = sum(weights.values())
    for number, device in enumerate(fleet):
        name = ran.description.name(number)
        if handed_in[name] > waiting:
            assert weights[name] > 0
        # The model that the run began with counts as one, and what a buffer still holds.
        limit = most(samples, device.samples)
        assert weights[name] <= limit * (total + 1 + waiting * fresh) + 1e-9


@given(fleet=st.lists(devices, min_size=2, max_size=5))
def test_the_server_trains_on_no_device_more_than_its_share_allows(fleet: list[Device]) -> None:
    ran = world("fedoptima", fleet)
    ran.run(limit=200_000)
    grants = ran.grants()
    samples = [device.samples for device in fleet]
    for number, device in enumerate(fleet):
        limit = most(samples, device.samples)
        assert grants[ran.description.name(number)] <= 1 + limit * grants.total() + 1e-9
