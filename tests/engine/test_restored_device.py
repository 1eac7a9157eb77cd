"""A device that was restored, or prepares again, goes on as if nothing had happened."""

from __future__ import annotations

import pytest
import torch

from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    FullStep,
    LoadModel,
    Prepare,
    Rebase,
    ServerStep,
)
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.server import ServerEngine
from tests.engine.bench import (
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


def test_a_device_restored_before_the_answer_ends_as_the_unbroken_one() -> None:
    benches = [Bench(dense_model(), samples()) for _ in range(2)]
    for bench in benches:
        trained(bench, 0)
        bench.at("d", ExportModel(keep=True))
        trained(bench, 1)
    saved = benches[1].devices["d"].save()
    trained(benches[1], 2)
    benches[1].devices["d"].restore(*saved)
    for bench in benches:
        bench.at("d", Rebase(bench.first_model, 0.0))
        trained(bench, 2)
    assert same(state(benches[0].devices["d"]), state(benches[1].devices["d"]))


@pytest.mark.parametrize("when", ["before the forward pass", "before the auxiliary step"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_restored_device_goes_on_bit_for_bit(when: str, name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3)),
        torch.nn.Linear(8, 3),
    )
    bench = Bench(model, samples(), optimizer=sgd(name=name, momentum=0.9), auxiliary="default")
    device = bench.devices["d"]
    bench.at("d", Forward(0))
    bench.at("d", AuxiliaryStep(0))
    if when == "before the auxiliary step":
        bench.at("d", Forward(1))
    books, tensors = device.save()
    tensors = {key: tensor.clone() for key, tensor in tensors.items()}

    other = DeviceEngine(bench.workload, NodeId("d"), bench.loaders["d"])
    other.restore(books, tensors)
    for engine in (device, other):
        torch.manual_seed(id(engine) % 1000)
        if when == "before the forward pass":
            engine.execute(Forward(1), PayloadId("x"))
        engine.execute(AuxiliaryStep(1), PayloadId("x"))
        engine.execute(Forward(2), PayloadId("x"))
        engine.execute(AuxiliaryStep(2), PayloadId("x"))
    assert same(state(device), state(other))


def test_both_sides_are_restored_in_the_middle_of_a_mini_batch() -> None:
    ends = []
    for broken in (False, True):
        bench = Bench(dense_model(), samples(), auxiliary="none", optimizer=sgd(momentum=0.9))
        sent = [bench.at("d", Forward(0, part, 3)).result for part in range(3)]
        for part in range(3):
            if broken:  # gradients of earlier parts are there, graphs of later ones too
                books, tensors = bench.devices["d"].save()
                bench.devices["d"] = DeviceEngine(bench.workload, NodeId("d"), bench.loaders["d"])
                bench.devices["d"].restore(books, tensors)
                books, tensors = bench.server.save()
                bench.server = ServerEngine(bench.workload)
                bench.server.restore(books, tensors)
            step = ServerStep(NodeId("d"), 1, 0, sent[part], 0.0, True, part, 3)
            back = bench.at_server(step).result
            bench.at("d", Backward(0, part, back, apply=part == 2, parts=3))
        ends.append((state(bench.devices["d"]), bench.server.export()))
    (device, server), (restored_device, restored_server) = ends
    assert same(device, restored_device)
    assert same(server, restored_server)


def test_a_device_prepares_again_as_if_new() -> None:
    bench = whole(optimizer=sgd(momentum=0.9))
    bench.at("d", FullStep(0))
    bench.devices["d"].reset()
    bench.at("d", Prepare(bench.plan))
    bench.at("d", LoadModel(bench.first_model, 0.0))
    bench.at("d", FullStep(0))
    assert same(state(bench.devices["d"]), plain_steps(bench, 1, momentum=0.9))
