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
from fedoptima.core.plan import BlockProfile, Plan
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.preprocess.job_costs import JobCosts

DATA = Payload(PayloadId("x"), 0)
D = NodeId("d")
PARTS = (Part(D, 0.5, DATA),)


def block(name: str, forward: float, backward: float, parameters: int) -> BlockProfile:
    return BlockProfile(name, forward, backward, 10, 10, parameters, 4 * parameters)


BLOCKS = (block("a", 100, 200, 7), block("b", 1000, 3000, 50))
SPLIT = Plan(BLOCKS, 1, "default", block("aux", 10, 30, 3), "paper", ())
WHOLE = Plan(BLOCKS, 2, "none", None, "paper", ())


@pytest.mark.parametrize(
    ("job", "flops"),
    [
        (Forward(0), 100 * 8),
        (Forward(0, 1, 4), 100 * 2),
        (AuxiliaryStep(0), (10 + 30 + 200) * 8),
        (Backward(0, 0, DATA), 200 * 8),
        (Backward(0, 0, DATA, False, 4), 200 * 2),
        (LoadModel(DATA, 0.0), 7 + 3),
        (ExportModel(), 7 + 3),
        (ServerStep(D, 1, 0, DATA, 0.0), 4000 * 8),
        (ServerStep(D, 1, 0, DATA, 0.0, True, 0, 2), 4000 * 4),
        (Merge(0.5, PARTS, (D,)), 2 * 10 * 2),
        (Merge(0.0, PARTS * 3, (D,)), 2 * 10 * 4),
        (OpenCopy(D, 1), 50),
        (CloseCopy(D), 0),
        (Prepare(""), 0),
        (PlanRun(()), 0),
    ],
)
def test_a_job_costs_the_flops_of_its_part_of_the_plan(job: Job, flops: float) -> None:
    assert JobCosts(SPLIT).flops(job, batch=8) == flops


def test_a_model_trained_whole_costs_all_of_its_blocks() -> None:
    costs = JobCosts(WHOLE)
    assert costs.flops(FullStep(0), batch=8) == (100 + 200 + 1000 + 3000) * 8
    assert costs.flops(ExportModel(), batch=8) == 57
