"""Tensors from the network: used as they came on a CPU, moved in good time on a GPU."""

from __future__ import annotations

import pytest
import torch

from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    LoadModel,
    Merge,
    OpenCopy,
    Part,
    ServerOptimizer,
    ServerStep,
)
from fedoptima.core.messages import ActivationBatch, GlobalModel, GradientBatch, ModelUpdate, TurnOn
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.gpu_upload import Staged, arrived, stage, stage_message
from fedoptima.engine.payloads import Tensors, pack, unpack
from tests.engine.bench import Bench, dense_model, payload, same, samples, sgd

CPU = torch.device("cpu")
D = NodeId("d")
NOTHING = Payload(PayloadId("x"), 0)

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_on_a_cpu_tensors_are_used_as_they_came() -> None:
    data = payload(values=torch.ones(3))
    assert stage(unpack(data), CPU) is data.value
    assert arrived(data, CPU) is data.value


@pytest.mark.parametrize("message", [TurnOn(), ActivationBatch(0, payload(a=torch.ones(3)))])
def test_on_a_cpu_a_message_stays_as_it_is(message: TurnOn | ActivationBatch) -> None:
    assert stage_message(message, CPU) is message
    bench = Bench(dense_model(), samples())
    assert bench.server.receive(message) is message
    assert bench.devices["d"].receive(message) is message


# ---- with a GPU ------------------------------------------------------------------------------


def gpu() -> torch.device:
    return torch.device("cuda")


def from_the_network(data: Payload, *, pinned: bool = torch.cuda.is_available()) -> Payload:
    """As the receiver at the other node would hold it."""
    tensors = {name: tensor.cpu().clone() for name, tensor in unpack(data).items()}
    return pack(data.id, {n: t.pin_memory() for n, t in tensors.items()} if pinned else tensors)


@on_a_gpu
@pytest.mark.parametrize("pinned", [True, False])
def test_staged_tensors_arrive_whole_while_the_gpu_is_busy(pinned: bool) -> None:
    busy = torch.randn(4000, 4000, device=gpu())
    batches = [torch.full((1 << 20,), float(i)) for i in range(20)]
    sent = [from_the_network(payload(values=batch), pinned=pinned) for batch in batches]
    for _ in range(5):
        busy = busy @ busy / 4000
    staged = [pack(p.id, stage(unpack(p), gpu())) for p in sent]
    del sent  # the pinned memory may be used again before the copies are done
    sums = []
    for data in staged:
        assert isinstance(data.value, Staged)
        tensors = arrived(data, gpu())
        assert tensors["values"].is_cuda
        sums.append(tensors["values"].double().sum())
    assert [float(total) for total in sums] == [float(i) * (1 << 20) for i in range(20)]


@on_a_gpu
def test_memory_of_staged_tensors_is_not_used_again_while_a_step_reads_it() -> None:
    slow = torch.randn(6000, 6000, device=gpu())
    results = []
    for i in range(50):
        source = torch.full((1 << 20,), float(i)).pin_memory()
        tensors = arrived(pack(PayloadId("x"), stage({"values": source}, gpu())), gpu())
        slow = slow @ slow / 6000  # the sum below waits for this one; the next copy does not
        results.append(tensors["values"].double().sum())
        del tensors, source
    assert [float(total) for total in results] == [float(i) * (1 << 20) for i in range(50)]


@on_a_gpu
def test_staging_never_makes_the_host_wait() -> None:
    source = {"values": torch.ones(1 << 16).pin_memory()}
    arrived(pack(PayloadId("x"), stage(source, gpu())), gpu())  # the first call sets things up
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        arrived(pack(PayloadId("x"), stage(source, gpu())), gpu())
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_a_gpu
def test_every_message_with_tensors_is_staged_and_others_are_not() -> None:
    data = from_the_network(payload(values=torch.ones(3)))
    for message in (
        ActivationBatch(3, data, 1, 2),
        ModelUpdate(1, 2, data),
        GradientBatch(1, 0, data),
        GlobalModel(1, 0.5, data),
    ):
        staged = stage_message(message, gpu())
        assert staged == message  # values are not compared
        assert isinstance(staged.data.value, Staged)
    assert stage_message(TurnOn(), gpu()) == TurnOn()
    assert stage_message(GradientBatch(1, 0, NOTHING), gpu()).data.value is None


def work_through(bench: Bench, *, network: str) -> tuple[Tensors, Tensors]:
    """Two iterations and a merge; ``network``: what happens to everything on its way."""

    def carried(data: Payload) -> Payload:
        if network == "none":
            return data
        received = from_the_network(data)
        if network == "staged":
            return pack(data.id, stage(unpack(received), bench.workload.compute))
        return received

    gradients = bench.workload.planning.training is ServerTraining.PER_DEVICE
    if gradients:
        bench.at_server(OpenCopy(D, 1))
    bench.at("d", LoadModel(carried(bench.first_model), 0.0))
    for step in range(2):
        for part in range(2 if gradients else 1):
            parts = 2 if gradients else 1
            sent = bench.at("d", Forward(step, part, parts)).result
            job = ServerStep(D, 1, step, carried(sent), 0.0, gradients, part, parts)
            answer = bench.at_server(job).result
            if gradients:
                last = part + 1 == parts
                bench.at("d", Backward(step, part, carried(answer), last, parts))
            else:
                bench.at("d", AuxiliaryStep(step))
    delta = carried(bench.at("d", ExportModel(delta=True)).result)
    merge = Merge(1.0, (Part(D, 0.5, delta),), (D,), ServerOptimizer(0.5, 0.9))
    bench.at("d", LoadModel(carried(bench.at_server(merge).result), 0.0))
    update = carried(bench.at("d", ExportModel()).result)
    merged = bench.at_server(Merge(0.25, (Part(D, 0.75, update),), (D,))).result
    return {name: tensor.cpu() for name, tensor in unpack(merged).items()}, bench.server.export()


TRAININGS = [(ServerTraining.SHARED, "classifier"), (ServerTraining.PER_DEVICE, "none")]


def bench_on(compute: str, training: ServerTraining, auxiliary: str) -> Bench:
    return Bench(
        dense_model(),
        samples(),
        training=training,
        auxiliary=auxiliary,
        optimizer=sgd(momentum=0.9),
        compute=compute,
    )


@pytest.mark.parametrize("compute", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize(("training", "auxiliary"), TRAININGS)
@pytest.mark.parametrize("network", ["staged", "not staged"])
def test_engines_take_what_comes_from_the_network(
    compute: str, training: ServerTraining, auxiliary: str, network: str
) -> None:
    with deterministic():
        directly = work_through(bench_on(compute, training, auxiliary), network="none")
        remotely = work_through(bench_on(compute, training, auxiliary), network=network)
        on_the_cpu = work_through(bench_on("cpu", training, auxiliary), network="none")
    for one, other, roughly in zip(directly, remotely, on_the_cpu, strict=True):
        assert same(one, other)
        torch.testing.assert_close(other, roughly)


@on_a_gpu
def test_a_checkpoint_taken_at_once_finds_staged_batches_whole() -> None:
    bench = bench_on("cuda", ServerTraining.SHARED, "classifier")
    busy = torch.randn(4000, 4000, device=gpu())
    waiting = []
    for i in range(20):
        busy = busy @ busy / 4000
        waiting.append(stage({"values": torch.full((1 << 20,), float(i)).pin_memory()}, gpu()))
    bench.server.save()
    saved = [tensors["values"].cpu() for tensors in waiting]
    assert all(bool((tensor == float(i)).all()) for i, tensor in enumerate(saved))


@on_a_gpu
def test_an_evaluation_on_a_gpu_is_of_the_weights_as_they_were() -> None:
    bench = bench_on("cuda", ServerTraining.SHARED, "classifier")
    before = bench.server.evaluate()
    taken = bench.server.evaluation()
    work_through(bench, network="staged")
    assert taken() == before
    assert bench.server.evaluate() != before
