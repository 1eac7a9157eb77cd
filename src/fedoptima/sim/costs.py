"""How long a job takes on a simulated node: what its work costs there, or a measured time.

FLOPs / speed, bytes moved / memory bandwidth where the fleet gives one, and a fixed overhead
(`preprocess.job_costs`). What messages cost is `sim.network`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Protocol

from fedoptima.core.jobs import Backward, Forward, Job, PlanRun, Prepare, ServerStep, SkipStep
from fedoptima.core.types import SERVER, NodeId
from fedoptima.preprocess.job_costs import JobCosts, Rates
from fedoptima.sim.fleet import NodeSpec

_PARTIAL = (Forward, Backward, ServerStep)
_FREE = (PlanRun, Prepare, SkipStep)


@cache
def _in_a_fleet(job: str) -> str:
    """A job's class as a fleet's file names it: ServerStep is "server_step"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", job).lower()


class CostModel(Protocol):
    def seconds(self, node: NodeId, job: Job) -> float: ...


class NodeCosts:
    """``costs`` is called once, when the cost of the run's first job is needed."""

    def __init__(
        self,
        costs: Callable[[], JobCosts],
        server: NodeSpec,
        devices: Mapping[NodeId, NodeSpec],
        batches: Mapping[NodeId, int],
    ) -> None:
        self._make_costs = costs
        self._nodes = {SERVER: server, **devices}
        self._rates = {
            node: Rates(spec.flops_per_second, spec.memory, spec.overhead)
            for node, spec in self._nodes.items()
            if spec.memory is not None or spec.overhead
        }
        self._batches = batches  # samples in a device's batch

    @cached_property
    def _costs(self) -> JobCosts:
        return self._make_costs()

    def seconds(self, node: NodeId, job: Job) -> float:
        if isinstance(job, _FREE):
            return 0.0
        spec = self._nodes[node]
        if spec.seconds:
            kind = ServerStep if isinstance(job, ServerStep) else type(job)  # reused ones, too
            measured = spec.seconds.get(_in_a_fleet(kind.__name__))
            if measured is not None:
                # Measured for a whole batch; this may be a part of one.
                return measured / job.parts if isinstance(job, _PARTIAL) else measured
        source = job.origin if isinstance(job, ServerStep) else node
        batch = 0 if source == SERVER else self._batches[source]  # the server has no data
        if self._rates and (rates := self._rates.get(node)) is not None:
            return self._costs.seconds(job, batch, rates)
        return self._costs.flops(job, batch) / spec.flops_per_second
