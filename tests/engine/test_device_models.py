"""Models that a device loads, hands in, and goes on with."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedoptima.config.training import ScheduleConfig
from fedoptima.core.jobs import (
    Backward,
    ExportModel,
    Forward,
    FullStep,
    LoadModel,
    Prepare,
    Rebase,
    ServerStep,
)
from fedoptima.core.messages import GlobalModel
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.network import Network
from fedoptima.engine.payloads import unpack
from fedoptima.engine.workload import Workload
from tests.engine.bench import (
    RATE,
    Bench,
    dense_model,
    plain_steps,
    same,
    samples,
    sgd,
    state,
    trained,
    whole,
)


@dataclass(frozen=True)
class Interrupted(Workload):
    """A workload that calls somebody while a device prepares."""

    call: Callable[[], None] = lambda: None

    def networks(self, plan: str) -> dict[str, Network]:
        self.call()
        return super().networks(plan)


def test_a_model_may_arrive_while_a_device_prepares() -> None:
    bench = Bench(dense_model(), samples())
    calls: list[Callable[[], None]] = []
    known = {field.name: getattr(bench.workload, field.name) for field in fields(bench.workload)}
    workload = Interrupted(**known, call=lambda: calls.pop()() if calls else None)
    device = DeviceEngine(workload, NodeId("d"), bench.loaders["d"])
    calls.append(lambda: device.admit(GlobalModel(1, 0.0, bench.first_model)))
    device.execute(Prepare(bench.plan), PayloadId("job/0/1"))
    assert not calls, "nothing arrived meanwhile"
    device.admit(GlobalModel(1, 0.0, bench.first_model))


def test_what_was_learned_since_the_hand_in_is_carried_over_onto_the_answer() -> None:
    bench = Bench(dense_model(), samples())
    trained(bench, 0)
    sent = unpack(bench.at("d", ExportModel(keep=True)).result)
    handed_in = {name: tensor.clone() for name, tensor in sent.items()}
    trained(bench, 1)
    own = {name: tensor.clone() for name, tensor in state(bench.devices["d"]).items()}
    answer = unpack(bench.first_model)  # a refused update: there is nothing of it in the answer
    bench.at("d", Rebase(bench.first_model, 0.5))
    expected = {name: answer[name] + (own[name] - handed_in[name]) for name in own}
    assert same(state(bench.devices["d"]), expected)
    assert same(sent, handed_in)  # what was handed in has not been written to
    assert any(not torch.equal(expected[name], answer[name]) for name in expected)


def test_a_device_that_has_learned_nothing_since_has_exactly_the_answer() -> None:
    bench = Bench(dense_model(), samples())
    trained(bench, 0)
    bench.at("d", ExportModel(keep=True))
    bench.at("d", Rebase(bench.first_model, 0.0))
    assert same(state(bench.devices["d"]), dict(unpack(bench.first_model)))


def test_momentum_stays_with_its_owner_when_a_model_is_loaded() -> None:
    bench = whole(optimizer=sgd(momentum=0.9))
    bench.at("d", FullStep(0))
    bench.at("d", LoadModel(bench.first_model, 0.0))
    bench.at("d", FullStep(1))

    model = deepcopy(bench.workload.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for step in range(2):
        model.load_state_dict(unpack(bench.first_model))
        inputs, labels = bench.batch(step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    assert same(state(bench.devices["d"]), model.state_dict())


def test_reset_on_load_forgets_the_momentum() -> None:
    bench = whole(optimizer=sgd(momentum=0.9, reset_on_load=True))
    bench.at("d", FullStep(4))
    bench.at("d", LoadModel(bench.first_model, 0.0))
    for step in range(2):
        bench.at("d", FullStep(step))
    assert same(state(bench.devices["d"]), plain_steps(bench, 2, momentum=0.9))


def test_the_learning_rate_follows_the_progress_that_comes_with_a_model() -> None:
    bench = whole(schedule=ScheduleConfig(kind="linear"))
    bench.at("d", LoadModel(bench.first_model, 0.75))
    bench.at("d", FullStep(0))
    assert same(state(bench.devices["d"]), plain_steps(bench, 1, lr=RATE * 0.25))


def test_the_next_round_does_not_change_an_exported_model() -> None:
    bench = whole()
    bench.at("d", FullStep(0))
    exported = unpack(bench.at("d", ExportModel()).result)
    kept = {name: tensor.clone() for name, tensor in exported.items()}
    bench.at("d", LoadModel(bench.first_model, 0.0))
    bench.at("d", FullStep(1))
    assert same(exported, kept)
    assert not same(exported, state(bench.devices["d"]))


def test_a_device_holds_no_model_after_its_export() -> None:
    bench = whole()
    bench.at("d", FullStep(0))
    bench.at("d", ExportModel())
    assert not state(bench.devices["d"])


def test_a_loaded_model_is_copied_too() -> None:
    bench = whole()
    kept = {name: tensor.clone() for name, tensor in unpack(bench.first_model).items()}
    bench.at("d", FullStep(0))
    assert same(unpack(bench.first_model), kept)


def test_a_delta_is_the_change_since_the_model_was_loaded() -> None:
    bench = whole()
    bench.at("d", FullStep(0))
    after = state(bench.devices["d"])
    delta = unpack(bench.at("d", ExportModel(delta=True)).result)
    before = unpack(bench.first_model)
    assert same(delta, {name: after[name] - before[name] for name in after})


def test_the_model_given_is_never_trained_itself() -> None:
    bench = whole()
    before = deepcopy(bench.workload.model.state_dict())
    bench.at("d", FullStep(0))
    assert same(bench.workload.model.state_dict(), before)


def test_a_new_model_drops_what_waits_for_its_backward_pass() -> None:
    bench = Bench(dense_model(), samples(), auxiliary="none")
    sent = bench.at("d", Forward(0)).result
    back = bench.at_server(ServerStep(NodeId("d"), 1, 0, sent, 0.0, True)).result
    bench.at("d", LoadModel(bench.first_model, 0.0))
    with pytest.raises(KeyError):
        bench.at("d", Backward(0, 0, back))
