"""Where activations enter the server's side: at its beginning, or behind a device's own cut."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedoptima.core.plan import Plan
from fedoptima.engine.codecs import CutCodec
from fedoptima.engine.network import Network
from fedoptima.engine.payload_validation import ExpectedActivations
from fedoptima.engine.value_ranges import Range
from fedoptima.engine.workload import Workload
from fedoptima.preprocess.sides import Sides


@dataclass(frozen=True)
class Entrance:
    network: Network  # from there on, without weights of its own
    example: object  # of what crosses the cut
    cut: CutCodec
    expected: ExpectedActivations


def entrances_of(workload: Workload, plan: Plan, sides: Mapping[int, Sides]) -> dict[int, Entrance]:
    """By cut; none where nothing is split."""
    found: dict[int, Entrance] = {}
    for cut, side in sides.items():
        if side.server is not None:
            codec = CutCodec.of(plan.at(cut))
            expected = ExpectedActivations(
                side.activation,
                batch_size=workload.planning.batch_size,
                labels=workload.labels,
                cut=codec,
            )
            network = workload.network(side.server)
            found[cut] = Entrance(network, side.activation, codec, expected)
    return found


def allowed_ranges(entrances: Collection[Entrance]) -> dict[str, Range]:
    """The values that a batch may have, whichever cut it is of."""
    ranges = [entrance.expected.ranges for entrance in entrances]
    first, *others = ranges or [{}]
    return {
        name: Range(min(r[name].low for r in ranges), max(r[name].high for r in ranges))
        for name in first
        if all(name in other for other in others)
    }
