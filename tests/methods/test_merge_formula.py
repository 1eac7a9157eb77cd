"""FedOptima's merge, offered updates of every age: x <- (1 - w) x + w x_k, w = 1 / (s + 1)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedoptima.core.aggregation import AggregationPolicy, Decision, Offer
from fedoptima.core.jobs import AuxiliaryStep, ExportModel, Forward, LoadModel
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.payloads import unpack
from fedoptima.methods.fedoptima import fedoptima
from tests.engine.bench import Bench, same, samples, sgd
from tests.methods.references import mixed

D = NodeId("d")


def bench() -> Bench:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
        )
    data = samples(28, 1, 4, 4)
    return Bench(model, data, auxiliary="default", optimizer=sgd(momentum=0.9))


def offer(policy: AggregationPolicy, update: Payload, *, version: int, began: int) -> Decision:
    handed_in = ModelUpdate(began, 7, update)
    return policy.offer(Offer(D, handed_in, 28, version, now=0.0))


def one_round(bench: Bench, step: int) -> Payload:
    bench.at("d", Forward(step))
    bench.at("d", AuxiliaryStep(step))
    return bench.at("d", ExportModel()).result


@pytest.mark.parametrize("staleness", range(6))
def test_a_merge_is_the_formula_at_every_staleness(staleness: int) -> None:
    work = bench()
    first = unpack(work.first_model)
    update = one_round(work, 0)
    decision = offer(fedoptima(4).aggregation(), update, version=9, began=9 - staleness)
    assert decision.merge is not None
    merged = unpack(work.at_server(decision.merge).result)
    assert same(merged, mixed(first, unpack(update), 1 / (staleness + 1)))
    buffers = [name for name in merged if name.endswith(("running_mean", "running_var"))]
    assert {name.split(".")[0] for name in buffers} == {"0", "aux"}
    for name in buffers:
        assert not torch.equal(merged[name], first[name]), name
    counted = [int(merged[n]) for n in merged if n.endswith("num_batches_tracked")]
    assert counted == [1, 1]  # the largest, at every weight


def test_the_weight_is_not_carried_from_one_merge_into_the_next() -> None:
    """A factor multiplied into itself would fade with every merge."""
    work = bench()
    policy = fedoptima(4).aggregation()
    expected = unpack(work.first_model)
    for step, staleness in enumerate([3, 3, 0, 5, 3, 1, 3]):
        update = one_round(work, step)
        version = 10 + step
        decision = offer(policy, update, version=version, began=version - staleness)
        assert decision.merge is not None
        assert decision.merge.parts[0].weight == 1 / (staleness + 1)
        result = work.at_server(decision.merge).result
        expected = mixed(expected, unpack(update), 1 / (staleness + 1))
        assert same(unpack(result), expected)
        work.at("d", LoadModel(result, 0.0))


def test_keep_and_weight_make_a_whole_at_every_staleness_of_every_rule() -> None:
    for rule in ("inverse", "constant", "polynomial", "hinge"):
        policy = fedoptima(4, staleness=rule, alpha=0.8).aggregation()
        for staleness in range(20):
            update = Payload(PayloadId("d/0/1"), 0)
            decision = offer(policy, update, version=20, began=20 - staleness)
            assert decision.merge is not None
            total = decision.merge.keep + sum(part.weight for part in decision.merge.parts)
            assert total == pytest.approx(1, abs=1e-12)
