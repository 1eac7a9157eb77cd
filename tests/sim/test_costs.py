from __future__ import annotations

import pytest

from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    CloseCopy,
    ExportModel,
    Forward,
    FullStep,
    Job,
    LoadModel,
    Merge,
    OpenCopy,
    Part,
    PlanRun,
    Prepare,
    ServerStep,
)
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.preprocess.costs import BlockProfile
from fedoptima.preprocess.plan import Plan
from fedoptima.sim.costs import FlopCosts
from fedoptima.sim.fleet import NodeSpec

DATA = Payload(PayloadId("x"), 0)
D = NodeId("d")


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


def costs(**seconds: float) -> FlopCosts:
    server = NodeSpec(2000.0, seconds)
    return FlopCosts(lambda: PLAN, server, {D: NodeSpec(100.0, seconds)}, {D: 8})


@pytest.mark.parametrize(
    ("node", "job", "seconds"),
    [
        (D, Forward(0), 100 * 8 / 100),
        (D, Forward(0, 1, 4), 100 * 2 / 100),
        (D, AuxiliaryStep(0), (10 + 30 + 200) * 8 / 100),
        (D, Backward(0, 0, DATA), 200 * 8 / 100),
        (D, Backward(0, 0, DATA, False, 4), 200 * 2 / 100),
        (D, FullStep(0), 300 * 8 / 100),
        (D, LoadModel(DATA, 0.0), 10 / 100),
        (D, ExportModel(), 10 / 100),
        (SERVER, ServerStep(D, 1, 0, DATA, 0.0), 4000 * 8 / 2000),
        (SERVER, ServerStep(D, 1, 0, DATA, 0.0, True, 0, 2), 4000 * 4 / 2000),
        (SERVER, Merge(0.5, (Part(D, 0.5, DATA),), (D,)), 2 * 10 * 2 / 2000),
        (SERVER, OpenCopy(D, 1), 50 / 2000),
        (SERVER, CloseCopy(D), 0.0),
        (D, Prepare(""), 0.0),
        (SERVER, PlanRun(()), 0.0),
    ],
)
def test_a_job_takes_its_flops_over_the_nodes_speed(node: NodeId, job: Job, seconds: float) -> None:
    assert costs().seconds(node, job) == pytest.approx(seconds)


def test_a_measured_time_replaces_the_estimate_of_its_job_alone() -> None:
    measured = costs(auxiliary_step=0.125, merge=0.5)
    assert measured.seconds(D, AuxiliaryStep(0)) == 0.125
    assert measured.seconds(SERVER, Merge(0.5, (), ())) == 0.5
    assert measured.seconds(D, Forward(0)) == pytest.approx(8.0)


def test_a_plan_is_not_asked_for_before_there_is_one() -> None:
    def none_yet() -> Plan:
        raise AssertionError("asked too early")

    early = FlopCosts(none_yet, NodeSpec(1.0, {}), {D: NodeSpec(1.0, {})}, {D: 1})
    assert early.seconds(SERVER, PlanRun(())) == 0.0
    assert early.seconds(D, Prepare("")) == 0.0
