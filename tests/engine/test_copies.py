"""The server's copies: one for each device, both sides merged, refreshed on every answer."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedoptima.core.aggregation import Offer
from fedoptima.core.jobs import (
    Backward,
    CloseCopy,
    ExportModel,
    Forward,
    LoadModel,
    Merge,
    OpenCopy,
    Part,
    ServerStep,
)
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId, Payload
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from fedoptima.methods.oafl import oafl
from tests.engine.bench import Bench, same, samples, sgd

A, B = NodeId("a"), NodeId("b")


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh()),
            nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)),
        )


def bench(momentum: float = 0.0) -> Bench:
    work = Bench(
        network(),
        samples(),
        training=ServerTraining.PER_DEVICE,
        auxiliary="none",
        optimizer=sgd(momentum=momentum),
        devices=("a", "b"),
    )
    for device in (A, B):
        work.at_server(OpenCopy(device, 1))
    return work


def train(work: Bench, device: NodeId, step: int, parts: int = 1) -> None:
    sent = [work.at(device, Forward(step, part, parts)).result for part in range(parts)]
    for part, data in enumerate(sent):
        job = ServerStep(device, 1, step, data, 0.0, True, part, parts)
        gradient = work.at_server(job).result
        work.at(device, Backward(step, part, gradient, part + 1 == parts, parts))


def hand_in(work: Bench, device: NodeId) -> Payload:
    return work.at(device, ExportModel()).result


def answers(work: Bench, device: NodeId) -> Tensors:
    """What the device's copy says to one and the same activations, and what the answer does to it:
    a copy that differs in any weight gives another gradient."""
    hidden, labels = samples(7, 8, seed=9)
    books, tensors = work.server.save()
    other = ServerEngine(work.workload)
    other.restore(books, {name: tensor.clone() for name, tensor in tensors.items()})
    data = Payload(work.first_model.id, 0, {"activations.0": hidden, "labels": labels})
    return unpack(other.execute(ServerStep(device, 1, 99, data, 0.0, True), data.id).result)


def as_the_global_side_would(work: Bench) -> Tensors:
    hidden, labels = samples(7, 8, seed=9)
    plain = network()
    plain.load_state_dict(work.server.export())
    hidden.requires_grad_()
    cross_entropy(plain[1](hidden), labels).backward()
    assert hidden.grad is not None
    return {"activations.0": hidden.grad}


def buffers_of(work: Bench, device: NodeId) -> Tensors:
    """The copy's running statistics, which no answer shows."""
    _, tensors = work.server.save()
    prefix = f"learner.{device}/model."
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    assert own
    return {name: tensor for name, tensor in own.items() if "running" in name or "num" in name}


def test_training_one_copy_leaves_the_global_side_and_the_others_alone() -> None:
    work = bench()
    before = as_the_global_side_would(work)
    for step in range(3):
        train(work, A, step)
    assert same(answers(work, B), before)
    assert same(as_the_global_side_would(work), before)
    assert not same(answers(work, A), before)


def test_a_refused_update_refreshes_the_device_and_its_copy() -> None:
    """What the server orders when it refuses: the copy opened again, then the global model."""
    work = bench()
    train(work, A, 0)
    train(work, B, 0)
    merged = work.at_server(Merge(0.5, (Part(B, 0.5, hand_in(work, B)),), (B,))).result
    policy = oafl(2, max_delay=0).aggregation()
    late = ModelUpdate(0, 7, hand_in(work, A))
    decision = policy.offer(Offer(A, late, samples=28, version=1, now=0.0))
    assert decision.refused
    assert decision.merge is None
    assert decision.refresh == (A,)
    assert not same(answers(work, A), as_the_global_side_would(work))
    work.at_server(OpenCopy(A, 1))
    work.at(A, LoadModel(merged, 0.0))
    assert same(answers(work, A), as_the_global_side_would(work))
    whole = work.server.export()
    assert same(buffers_of(work, A), {n: whole[n] for n in buffers_of(work, A)})
    device_side = unpack(hand_in(work, A))
    assert same(device_side, {name: whole[name] for name in device_side})


def test_a_merge_refreshes_the_copies_it_is_told_to_and_no_other() -> None:
    work = bench()
    train(work, A, 0)
    train(work, B, 0)
    of_b, buffers_of_b = answers(work, B), buffers_of(work, B)
    work.at_server(Merge(0.5, (Part(A, 0.5, hand_in(work, A)),), (A,)))
    assert same(answers(work, A), as_the_global_side_would(work))
    assert same(answers(work, B), of_b)
    assert same(buffers_of(work, B), buffers_of_b)


@pytest.mark.parametrize("weight", [1.0, 0.8, 0.25])
def test_both_sides_are_mixed_at_the_same_weight(weight: float) -> None:
    work = bench()
    plain = network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    inputs, labels = work.batch(0, "a")
    cross_entropy(plain(inputs), labels).backward()
    optimizer.step()
    train(work, A, 0)
    work.at_server(Merge(1 - weight, (Part(A, weight, hand_in(work, A)),), (A,)))
    whole = work.server.export()
    first = network().state_dict()
    for name, local in plain.state_dict().items():
        if local.is_floating_point():
            expected = (1 - weight) * first[name] + weight * local
            assert torch.equal(whole[name], expected), name
        else:
            assert int(whole[name]) == 1, name


def test_a_copys_momentum_stays_with_it_until_it_is_closed() -> None:
    """Across a refresh as across a load on a device (docs/decisions/0014)."""
    work = bench(momentum=0.9)
    train(work, A, 0)
    work.at_server(OpenCopy(A, 1))
    kept = deepcopy(work.server.save()[1])
    assert any("learner.a/optimizer" in name for name in kept)
    work.at_server(CloseCopy(A))
    work.at_server(OpenCopy(A, 2))
    assert not any("learner.a/optimizer" in name for name in work.server.save()[1])


def test_gradients_of_an_unfinished_mini_batch_do_not_outlive_a_refresh() -> None:
    work = bench()
    sent = work.at(A, Forward(0, 0, 2)).result
    work.at_server(ServerStep(A, 1, 0, sent, 0.0, True, 0, 2))
    assert any("learner.a/gradient" in name for name in work.server.save()[1])
    work.at_server(OpenCopy(A, 2))
    assert not any("learner.a/gradient" in name for name in work.server.save()[1])


def test_a_copy_steps_once_for_all_parts_of_a_mini_batch() -> None:
    work = bench()
    before = answers(work, A)
    sent = [work.at(A, Forward(0, part, 2)).result for part in range(2)]
    work.at_server(ServerStep(A, 1, 0, sent[0], 0.0, True, 0, 2))
    assert "learner.a/gradient.0" in work.server.save()[1]
    work.at_server(ServerStep(A, 1, 0, sent[1], 0.0, True, 1, 2))
    assert "learner.a/gradient.0" not in work.server.save()[1]
    assert not same(answers(work, A), before)
