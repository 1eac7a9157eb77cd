"""How long a job takes on a simulated node: what its work costs there, or a measured time.

FLOPs / speed, bytes moved / memory bandwidth where the fleet gives one, and a fixed overhead
(`preprocess.job_costs`). What messages cost is `sim.network`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Protocol

from fedoptima.core.jobs import (
    Backward,
    Forward,
    Job,
    Merge,
    PlanRun,
    Prepare,
    ServerStep,
    SkipStep,
    cut_of,
)
from fedoptima.core.types import SERVER, NodeId
from fedoptima.preprocess.job_costs import JobCosts, Rates
from fedoptima.sim.fleet import NodeSpec

_PARTIAL = (Forward, Backward, ServerStep)
_FREE = (PlanRun, Prepare, SkipStep)


@cache
def _in_a_fleet(job: str) -> str:
    """A job's class as a fleet's file names it: ServerStep is "server_step"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", job).lower()


def _kind(job: Job) -> type:
    """Reused steps are steps, and merges are merges."""
    return next((kind for kind in (ServerStep, Merge) if isinstance(job, kind)), type(job))


class CostModel(Protocol):
    def seconds(self, node: NodeId, job: Job) -> float: ...


class NodeCosts:
    """``costs``: of jobs with a cut; called once for each, when the first is to be paid for.

    ``cut``: of a device, where each has its own.
    """

    def __init__(
        self,
        costs: Callable[[int], JobCosts],
        server: NodeSpec,
        devices: Mapping[NodeId, NodeSpec],
        batches: Mapping[NodeId, int],
        cut: Callable[[NodeId], int] | None = None,
    ) -> None:
        self._make_costs = costs
        self._cut = cut
        self._made: dict[int, JobCosts] = {}
        self._nodes = {SERVER: server, **devices}
        self._rates = {
            node: Rates(spec.flops_per_second, spec.memory, spec.overhead)
            for node, spec in self._nodes.items()
            if spec.memory is not None or spec.overhead
        }
        self._batches = batches  # samples in a device's batch

    def _costs(self, node: NodeId, job: Job) -> JobCosts:
        cut = 0
        if self._cut is not None:
            cut = cut_of(job) if node == SERVER else self._cut(node)
        made = self._made.get(cut)
        if made is None:
            made = self._made[cut] = self._make_costs(cut)
        return made

    def seconds(self, node: NodeId, job: Job) -> float:
        if isinstance(job, _FREE):
            return 0.0
        spec = self._nodes[node]
        if spec.seconds:
            measured = spec.seconds.get(_in_a_fleet(_kind(job).__name__))
            if measured is not None:
                # Measured for a whole batch; this may be a part of one.
                return measured / job.parts if isinstance(job, _PARTIAL) else measured
        costs = self._costs(node, job)
        source = job.origin if isinstance(job, ServerStep) else node
        batch = 0 if source == SERVER else self._batches[source]  # the server has no data
        if self._rates and (rates := self._rates.get(node)) is not None:
            return costs.seconds(job, batch, rates)
        return costs.flops(job, batch) / spec.flops_per_second
