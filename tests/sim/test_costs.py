from __future__ import annotations

import pytest

from fedoptima.core.jobs import (
    AuxiliaryStep,
    Forward,
    Job,
    Merge,
    Part,
    PlanRun,
    Prepare,
    ServerStep,
)
from fedoptima.core.plan import BlockProfile, Plan
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.preprocess.job_costs import JobCosts
from fedoptima.sim.costs import NodeCosts
from fedoptima.sim.fleet import NodeSpec

DATA = Payload(PayloadId("x"), 0)
D, E = NodeId("d"), NodeId("e")


def block(name: str, forward: float, backward: float, parameters: int) -> BlockProfile:
    return BlockProfile(name, forward, backward, 10, 10, parameters, 4 * parameters)


PLAN = Plan(
    blocks=(block("a", 100, 200, 7), block("b", 1000, 3000, 50)),
    split=1,
    auxiliary="default",
    auxiliary_profile=block("aux", 10, 30, 3),
    objective="paper",
    table=(),
)


def costs(**seconds: float) -> NodeCosts:
    devices = {D: NodeSpec(100.0, seconds), E: NodeSpec(400.0, {})}
    return NodeCosts(lambda _: JobCosts(PLAN), NodeSpec(2000.0, seconds), devices, {D: 8, E: 3})


@pytest.mark.parametrize(
    ("node", "job", "seconds"),
    [
        (D, Forward(0), 100 * 8 / 100),
        (E, Forward(0), 100 * 3 / 400),
        (D, AuxiliaryStep(0), (10 + 30 + 200) * 8 / 100),
        (SERVER, ServerStep(D, 1, 0, DATA, 0.0), 4000 * 8 / 2000),
        (SERVER, ServerStep(E, 1, 0, DATA, 0.0), 4000 * 3 / 2000),
        (SERVER, Merge(0.5, (Part(D, 0.5, DATA),), (D,)), 2 * 10 * 2 / 2000),
    ],
)
def test_a_job_takes_its_flops_over_the_nodes_speed(node: NodeId, job: Job, seconds: float) -> None:
    assert costs().seconds(node, job) == pytest.approx(seconds)


def test_a_measured_time_replaces_the_estimate_of_its_job_alone() -> None:
    measured = costs(auxiliary_step=0.125, merge=0.5)
    assert measured.seconds(D, AuxiliaryStep(0)) == 0.125
    assert measured.seconds(SERVER, Merge(0.5, (), ())) == 0.5
    assert measured.seconds(D, Forward(0)) == pytest.approx(8.0)


def test_a_time_measured_for_a_batch_is_divided_among_its_parts() -> None:
    measured = costs(forward=2.0, server_step=1.0)
    assert measured.seconds(D, Forward(0, 1, 4)) == 0.5
    assert measured.seconds(SERVER, ServerStep(D, 1, 0, DATA, 0.0, True, 0, 2)) == 0.5


def test_a_plan_is_not_asked_for_before_there_is_one() -> None:
    def none_yet(_: int) -> JobCosts:
        raise AssertionError("asked too early")

    early = NodeCosts(none_yet, NodeSpec(1.0, {}), {D: NodeSpec(1.0, {})}, {D: 1})
    assert early.seconds(SERVER, PlanRun(())) == 0.0
    assert early.seconds(D, Prepare("")) == 0.0


def test_memory_and_overhead_are_paid_by_the_nodes_that_have_them() -> None:
    devices = {D: NodeSpec(100.0, {}, memory=50.0, overhead=0.25), E: NodeSpec(400.0, {})}
    server = NodeSpec(2000.0, {"merge": 3.0}, overhead=0.5)
    made = NodeCosts(lambda _: JobCosts(PLAN), server, devices, {D: 8, E: 3})
    forward = 28  # bytes of the weights, which are read; the plan's operations move nothing
    assert made.seconds(D, Forward(0)) == pytest.approx(100 * 8 / 100 + forward / 50 + 0.25)
    assert made.seconds(E, Forward(0)) == 100 * 3 / 400
    step = ServerStep(D, 1, 0, DATA, 0.0)
    assert made.seconds(SERVER, step) == pytest.approx(4000 * 8 / 2000 + 0.5)
    assert made.seconds(SERVER, Merge(0.5, (), ())) == 3.0  # a measured time is all of it
