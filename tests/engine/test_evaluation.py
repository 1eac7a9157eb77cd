"""Evaluation off the clock: on weights as they were, on another thread, while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedoptima.core.errors import InvariantBroken
from fedoptima.core.jobs import (
    AuxiliaryStep,
    ExportModel,
    Forward,
    LoadModel,
    Merge,
    Part,
    ServerStep,
)
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from tests.engine.bench import Bench, dense_model, payload, same, samples

D = NodeId("d")
T = TypeVar("T")


def elsewhere(work: Callable[[], T]) -> T:
    """On a thread of its own."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def norms() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh()),
            nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)),
        )


def train(bench: Bench, step: int) -> None:
    sent = bench.at("d", Forward(step)).result
    bench.at("d", AuxiliaryStep(step))
    bench.at_server(ServerStep(D, 1, step, sent, 0.0))
    update = bench.at("d", ExportModel()).result
    merged = bench.at_server(Merge(0.0, (Part(D, 1.0, update),), (D,))).result
    bench.at("d", LoadModel(merged, 0.0))


def test_an_evaluation_is_of_the_weights_as_they_were_when_it_was_taken() -> None:
    bench = Bench(norms(), samples())
    train(bench, 0)
    at_once = bench.server.evaluate()
    taken = bench.server.evaluation()
    for step in range(1, 4):
        train(bench, step)
    assert bench.server.evaluate() != at_once
    assert elsewhere(taken) == at_once


def test_several_evaluations_may_wait_at_a_time() -> None:
    bench = Bench(norms(), samples())
    expected, taken = [], []
    for step in range(3):
        train(bench, step)
        expected.append(bench.server.evaluate())
        taken.append(bench.server.evaluation())
    assert len(set(expected)) == 3
    assert [elsewhere(measure) for measure in reversed(taken)] == expected[::-1]


class Watching(nn.Module):
    """A layer that calls somebody in the middle of an evaluation."""

    called: Callable[[], None] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training and Watching.called is not None:
            Watching.called()
        return inputs


def test_training_during_an_evaluation_changes_neither() -> None:
    def work(bench: Bench, *, overlapping: bool) -> tuple[object, Tensors]:
        train(bench, 0)
        taken = bench.server.evaluation()
        Watching.called = (lambda: elsewhere(lambda: train(bench, 1))) if overlapping else None
        metrics = taken()
        Watching.called = None
        if not overlapping:
            train(bench, 1)
        train(bench, 2)
        return metrics, bench.server.export()

    model = norms()
    model[1].append(Watching())
    apart = work(Bench(model, samples()), overlapping=False)
    together = work(Bench(model, samples()), overlapping=True)
    assert together[0] == apart[0]
    assert same(together[1], apart[1])


class Remembering(nn.Linear):
    """Keeps its last output, as people do to look at attention; such a module cannot be copied."""

    last: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        self.last = super().forward(inputs)
        return self.last


def test_a_model_that_remembers_its_last_output_can_be_evaluated_meanwhile() -> None:
    model = dense_model()
    model[1].append(Remembering(3, 3))
    bench = Bench(model, samples())
    train(bench, 0)
    taken = [bench.server.evaluation() for _ in range(2)]
    assert taken[0]() == taken[1]()


def test_a_model_trained_whole_is_evaluated_as_merged() -> None:
    bench = Bench(dense_model(), samples(), training=ServerTraining.NONE, auxiliary="none")
    taken = bench.server.evaluation()
    moved = {name: tensor + 1 for name, tensor in unpack(bench.first_model).items()}
    bench.at_server(Merge(0.0, (Part(D, 1.0, payload(**moved)),), (D,)))
    inputs, labels = samples()
    for metrics, weights in ((taken(), None), (bench.server.evaluate(), moved)):
        plain = dense_model().eval()
        if weights:
            plain.load_state_dict(weights)
        assert dict(metrics)["loss"] == pytest.approx(cross_entropy(plain(inputs), labels).item())


def test_there_is_nothing_to_evaluate_or_export_before_there_is_a_plan() -> None:
    server = ServerEngine(Bench(dense_model(), samples()).workload)
    with pytest.raises(InvariantBroken, match="before there is a plan"):
        server.evaluation()
    with pytest.raises(InvariantBroken, match="before there is a plan"):
        server.export()
