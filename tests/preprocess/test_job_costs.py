from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from fedoptima.core.codecs import Codec, Codecs
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
    Rebase,
    ServerStep,
    SkipStep,
)
from fedoptima.core.plan import BlockProfile, Plan
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.codecs import decode, encode
from fedoptima.preprocess.job_costs import DECODING, ENCODING, JobCosts, Rates
from fedoptima.preprocess.work import MovedBytes

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
        (SkipStep(0), 0),
        (Rebase(DATA, 0.0), 2 * (7 + 3)),
        (PlanRun(()), 0),
    ],
)
def test_a_job_costs_the_flops_of_its_part_of_the_plan(job: Job, flops: float) -> None:
    assert JobCosts(SPLIT).flops(job, batch=8) == flops


def test_a_server_that_answers_with_no_gradient_is_not_charged_for_one() -> None:
    """Of the block that it begins with: the others pass gradients back to each other."""
    blocks = tuple(replace(b, entry_flops=500.0, entry_moved=300) for b in BLOCKS)
    costs = JobCosts(replace(SPLIT, blocks=blocks))
    plain = JobCosts(SPLIT)
    for answered, spared in ((False, 1), (True, 0)):
        for parts in (1, 2):
            step = ServerStep(D, 1, 0, DATA, 0.0, answered, 0, parts)
            assert plain.flops(step, 8) - costs.flops(step, 8) == spared * 500 * 8 / parts
            assert plain.moved(step, 8) - costs.moved(step, 8) == spared * 300 * 8 / parts
    earlier = JobCosts(replace(SPLIT, blocks=(*blocks, blocks[1])))
    assert earlier.flops(ServerStep(D, 1, 0, DATA, 0.0), 8) == (2 * 4000 - 500) * 8


def test_a_model_trained_whole_costs_all_of_its_blocks() -> None:
    costs = JobCosts(WHOLE)
    assert costs.flops(FullStep(0), batch=8) == (100 + 200 + 1000 + 3000) * 8
    assert costs.flops(ExportModel(), batch=8) == 57


def moving(name: str, forward: int, backward: int, parameters: int) -> BlockProfile:
    """Blocks without FLOPs, whose weights have 4 bytes."""
    return BlockProfile(
        *(name, 0, 0, 10, 10, parameters, 4 * parameters),
        forward_moved=forward,
        backward_moved=backward,
    )


MOVING = (moving("a", 100, 200, 7), moving("b", 1000, 3000, 50))
TRAFFIC = Plan(MOVING, 1, "default", moving("aux", 10, 30, 3), "paper", ())
STEP = (3 + 2) * 4  # bytes for a weight: gradient, weight and momentum read, the latter two written


@pytest.mark.parametrize(
    ("job", "moved"),
    [
        (Forward(0), 100 * 8 + 28),
        (Forward(0, 1, 4), 100 * 2 + 28),
        (AuxiliaryStep(0), (10 + 30 + 200) * 8 + 3 * 12 + 2 * 28 + STEP * 10),
        (Backward(0, 0, DATA), 200 * 8 + 2 * 28 + STEP * 10),
        (Backward(0, 0, DATA, False, 4), 200 * 2 + 2 * 28),
        (LoadModel(DATA, 0.0), 2 * 40),
        (ExportModel(), 2 * 40),
        (ServerStep(D, 1, 0, DATA, 0.0), 4000 * 8 + 3 * 200 + STEP * 50),
        (ServerStep(D, 1, 0, DATA, 0.0, True, 0, 2), 4000 * 4 + 3 * 200),
        (ServerStep(D, 1, 0, DATA, 0.0, True, 1, 2), 4000 * 4 + 3 * 200 + STEP * 50),
        (Merge(0.5, PARTS, (D,)), 3 * 40),
        (Merge(0.0, PARTS * 3, (D,)), 5 * 40),
        (OpenCopy(D, 1), 2 * 200),
        (CloseCopy(D), 0),
        (Prepare(""), 0),
        (PlanRun(()), 0),
    ],
)
def test_a_job_moves_the_bytes_of_its_operations_its_weights_and_its_optimiser(
    job: Job, moved: float
) -> None:
    costs = JobCosts(TRAFFIC, device_state=1, server_state=1)
    assert costs.moved(job, batch=8) == moved
    assert costs.seconds(job, 8, Rates(1e300, memory=2.0, overhead=0.5)) == moved / 2 + 0.5
    assert costs.seconds(job, 8, Rates(1e300)) == pytest.approx(0.0)


def test_copies_of_the_server_side_are_merged_and_refreshed_as_well() -> None:
    costs = JobCosts(TRAFFIC, copies=True)
    merged = 4 * (40 + 200)  # two updates and the global model are read, the result is written
    assert costs.moved(Merge(0.5, PARTS * 2, ()), batch=8) == merged
    assert costs.moved(Merge(0.5, PARTS * 2, (D,)), batch=8) == merged + 2 * 200


@pytest.mark.parametrize(("state", "passes"), [(0, 3), (1, 5), (2, 7)])
def test_an_optimisers_step_moves_what_it_keeps_for_each_weight(state: int, passes: int) -> None:
    whole = Plan(MOVING, 2, "none", None, "paper", ())
    step = JobCosts(whole, device_state=state).moved(FullStep(0), batch=0)
    assert step == (3 + passes) * 4 * 57


def test_a_skipped_step_takes_no_time_even_where_every_job_has_an_overhead() -> None:
    assert JobCosts(SPLIT).seconds(SkipStep(0), 8, Rates(1.0, 1.0, overhead=3.0)) == 0.0


def test_coding_moves_what_its_operations_do() -> None:
    tensors = {"x": torch.rand(64, 50)}
    for codec in get_args(Codec):
        with MovedBytes() as coding:
            sent = encode(tensors, {"x"}, codec)
        with MovedBytes() as decoding:
            decode(sent, {"x"}, codec)
        numbers = tensors["x"].numel()  # and a little for each of 64 scales
        assert coding.total == pytest.approx(ENCODING[codec] * numbers, rel=0.03)
        assert decoding.total == pytest.approx(DECODING[codec] * numbers, rel=0.03)


def test_a_node_pays_for_coding_where_it_pays_for_memory() -> None:
    first = replace(MOVING[0], cut_rows=((0, 2),), weight_rows=(5, 1))
    coded = replace(TRAFFIC, blocks=(first, MOVING[1]), codecs=Codecs("int8", "bfloat16", "int8"))
    before, after = JobCosts(TRAFFIC), JobCosts(coded)
    for job, more in [
        (Forward(0, 1, 4), 2 * 2 * 37),
        (ServerStep(D, 1, 0, DATA, 0.0), 8 * 2 * 13),
        (ServerStep(D, 1, 0, DATA, 0.0, True, 1, 2), 4 * 2 * (13 + 6)),
        (Backward(0, 0, DATA, False, 4), 2 * 2 * 6),
        (ExportModel(), 5 * (37 + 12)),
        (Merge(0.0, PARTS * 3, (D,)), 3 * 5 * (13 + 12)),
        (LoadModel(DATA, 0.0), 0),
    ]:
        assert after.moved(job, 8) - before.moved(job, 8) == more, job
