"""A network server's recorded steps end where steps computed one by one end, bit for bit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event, Thread

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.codecs import PLAIN, Codecs
from fedoptima.core.jobs import CloseCopy, DeviceProfile, OpenCopy, PlanRun, ServerStep
from fedoptima.core.messages import ActivationBatch
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.engine.codecs import CutCodec
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.faults import Faults
from fedoptima.engine.graphs.network_server import RecordedServer
from fedoptima.engine.payloads import LABELS, Tensors, name_activation, pack, unpack
from fedoptima.engine.server import ServerEngine
from tests.engine.bench import Bench, same, samples

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

A, B = NodeId("a"), NodeId("b")
NOTHING = PayloadId("server/0/0")
PLAN = PlanRun(tuple(DeviceProfile(device, 28, 1e9, 1e6) for device in (A, B)))


class LooksAtValues(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value * 2 if value.sum().item() > 1e9 else value


def model(*more: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Sequential(nn.Linear(6, 8), nn.Tanh()),
            nn.Sequential(
                nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), *more, nn.Linear(16, 3)
            ),
        )


def bench(
    training: ServerTraining = ServerTraining.SHARED, *more: nn.Module, codecs: Codecs = PLAIN
) -> Bench:
    auxiliary = "classifier" if training is ServerTraining.SHARED else "none"
    parts = {"training": training, "compute": "cuda", "auxiliary": auxiliary, "codecs": codecs}
    return Bench(model(*more), samples(), **parts)  # type: ignore[arg-type]


def batch(seq: int, samples: int = 7, *, scale: float = 1.0) -> Tensors:
    generator = torch.Generator().manual_seed(seq)
    activation = scale * torch.randn(samples, 8, generator=generator)
    return {**name_activation(activation), LABELS: torch.arange(samples) % 3}


def train(engine: ServerEngine, batches: Sequence[Tensors], *, first: int = 0) -> list[Tensors]:
    """Of two devices in turn; returns the gradients."""
    gradients = []
    for seq, tensors in enumerate(batches, first):
        origin = (A, B)[seq % 2]
        pinned = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        message = engine.receive(ActivationBatch(seq, pack(NOTHING, pinned)))
        assert isinstance(message, ActivationBatch)
        job = ServerStep(origin, 1, seq, message.data, 0.0, return_gradient=True)
        gradients.append(unpack(engine.execute(job, NOTHING).result))
    return gradients


def started(engine: ServerEngine, training: ServerTraining) -> ServerEngine:
    engine.execute(PLAN, NOTHING)
    if training is ServerTraining.PER_DEVICE:
        for device in (A, B):
            engine.execute(OpenCopy(device, 1), NOTHING)
    return engine


@on_a_gpu
@pytest.mark.parametrize("codecs", [PLAIN, Codecs("int8", "int8"), Codecs("bfloat16")], ids=str)
@pytest.mark.parametrize("training", [ServerTraining.SHARED, ServerTraining.PER_DEVICE])
def test_recorded_steps_give_the_same_gradients_and_weights(
    training: ServerTraining, codecs: Codecs, caplog: pytest.LogCaptureFixture
) -> None:
    cut = CutCodec(codecs, frozenset({"activations.0"}))
    batches = [cut.encode(batch(seq, 4 if seq % 5 == 4 else 7)) for seq in range(30)]
    with deterministic(1):
        workload = bench(training, codecs=codecs).workload
        engines = [started(kind(workload), training) for kind in (RecordedServer, ServerEngine)]
        ours, expected = (train(engine, batches) for engine in engines)
        saved = [engine.save()[1] for engine in engines]
    assert "cannot be recorded" not in caplog.text
    assert isinstance(engines[0], RecordedServer)
    assert engines[0]._steps
    for found, wanted in zip(ours, expected, strict=True):
        assert same(found, wanted)
    for name, tensor in saved[1].items():
        assert torch.equal(saved[0][name], tensor), name


@on_a_gpu
def test_a_restored_server_records_again_and_goes_on_as_before() -> None:
    batches = [batch(seq) for seq in range(20)]
    with deterministic(1):
        workload = bench().workload
        whole = started(RecordedServer(workload), ServerTraining.SHARED)
        train(whole, batches)
        first = started(RecordedServer(workload), ServerTraining.SHARED)
        train(first, batches[:10])
        state, tensors = first.save()
        second = RecordedServer(workload)
        second.restore(state, tensors)
        train(second, batches[10:], first=10)
        assert same(second.export(), whole.export())


@on_a_gpu
def test_a_recorded_step_that_would_make_the_model_infinite_is_undone_and_its_device_named() -> (
    None
):
    with deterministic(1):
        workload = bench().workload
        engine = started(RecordedServer(workload), ServerTraining.SHARED)
        train(engine, [batch(seq) for seq in range(8)])
        before = engine.export()
        train(engine, [batch(8, scale=3e38)], first=8)
        assert same(engine.export(), before)
        train(engine, [batch(9), batch(10)], first=9)
        assert engine.save()[0]["faulty"] == [A]
        assert all(t.isfinite().all() for t in engine.export().values() if t.is_floating_point())


@on_a_gpu
def test_a_model_that_looks_at_values_is_computed_step_by_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    batches = [batch(seq) for seq in range(10)]
    with deterministic(1):
        workload = bench(ServerTraining.SHARED, LooksAtValues()).workload
        engines = [
            started(kind(workload), ServerTraining.SHARED)
            for kind in (RecordedServer, ServerEngine)
        ]
        for engine in engines:
            train(engine, batches)
        assert same(engines[0].export(), engines[1].export())
        held = torch.cuda.memory_allocated()
        train(engines[0], [batch(seq) for seq in range(200)])
        torch.cuda.synchronize()
        train(engines[0], [batch(0)])
        assert torch.cuda.memory_allocated() < held + 100_000  # what came was freed again
    assert "cannot be recorded" in caplog.text


@on_a_gpu
def test_steps_are_recorded_while_another_thread_copies_to_the_gpu(
    caplog: pytest.LogCaptureFixture,
) -> None:
    over = Event()

    def copy(engine: ServerEngine) -> None:
        while not over.is_set():
            size = int(torch.randint(1, 1 << 20, ()))
            data = torch.empty(size, pin_memory=True)
            engine.receive(ActivationBatch(0, pack(NOTHING, {"x": data})))

    with deterministic(1), caplog.at_level(logging.WARNING):
        engine = started(RecordedServer(bench().workload), ServerTraining.SHARED)
        thread = Thread(target=copy, args=(engine,))
        thread.start()
        try:
            for samples in range(2, 8):
                train(engine, [batch(seq, samples) for seq in range(6)])
        finally:
            over.set()
            thread.join()
        assert len(engine._steps) == 6  # type: ignore[attr-defined]
    assert "cannot be recorded" not in caplog.text


@on_a_gpu
def test_the_recordings_of_a_closed_copy_are_given_up() -> None:
    with deterministic(1):
        training = ServerTraining.PER_DEVICE
        engine = started(RecordedServer(bench(training).workload), training)
        train(engine, [batch(seq) for seq in range(8)])
        assert isinstance(engine, RecordedServer)
        assert {key[0] for key in engine._steps} == {A, B}
        engine.execute(CloseCopy(A), NOTHING)
        assert {key[0] for key in engine._steps} == {B}


@on_a_gpu
def test_a_fault_is_kept_when_its_memory_is_used_again() -> None:
    faults, flag = Faults(), torch.ones((), device="cuda")
    faults.note(A, flag)
    flag.zero_()
    faults.note(A, flag)
    faults.note(B, flag)
    assert faults.save() == [A]
    assert list(faults.named([B, A, A])) == [1, 2]
    assert faults.named([A, B]) == {}
