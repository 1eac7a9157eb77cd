"""How many samples are evaluated at a time, and that the number does not show in the result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedoptima.engine.evaluation import (
    CPU_BYTES,
    batch_within_memory,
    forward_pass,
    start_evaluation,
)
from fedoptima.models.vgg5 import vgg5
from tests.engine.bench import Bench, dense_model, samples

CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_the_largest_operation_decides_and_weights_do_not_count() -> None:
    images = torch.zeros(2, 3, 32, 32)
    first_layer = 32 * 32 * 32 * 4  # bytes that VGG-5's first convolution writes for an image
    assert forward_pass(vgg5().eval(), images)[1] == 2 * first_layer
    wide = nn.Linear(4, 1000)
    assert forward_pass(wide, torch.zeros(2, 4))[1] == 2 * 4000


def test_measuring_leaves_a_model_as_it_was() -> None:
    bench = Bench(dense_model(), samples())
    before = {name: tensor.clone() for name, tensor in bench.workload.model.state_dict().items()}
    bench.server.evaluate()
    assert bench.workload.model.training
    assert all(torch.equal(t, before[n]) for n, t in bench.workload.model.state_dict().items())


def test_a_batch_fits_the_bound_and_is_never_empty() -> None:
    assert batch_within_memory(1000, CPU) == CPU_BYTES // 1000
    assert batch_within_memory(2**40, CPU) == 1
    assert batch_within_memory(1000, GPU) > batch_within_memory(1000, CPU)


class Counting(nn.Module):
    """Counts the samples of each batch, and passes them on."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.sizes.append(len(inputs))
        assert torch.is_inference(inputs)
        return inputs


@pytest.mark.parametrize(("given", "expected"), [(7, 7), (None, 24)])
def test_a_recipe_may_set_the_batch(given: int | None, expected: int) -> None:
    inputs, labels = samples()
    bench = Bench(dense_model(), (inputs[:24], labels[:24]))
    counting = Counting()
    replace(bench.workload, evaluation_batch=given).evaluate([dense_model(), counting])
    assert max(counting.sizes) == expected
    assert sum(counting.sizes) == 24


def test_what_a_preparation_keeps_can_be_trained_with() -> None:
    kept: list[Tensor] = []

    def prepare(inputs: Tensor) -> Tensor:
        if not kept:
            kept.append(torch.ones(6))
        return inputs * kept[0]

    bench = Bench(dense_model(), samples())
    data = bench.workload.validation
    start_evaluation([dense_model()], data, 10, prepare=prepare, loss=bench.workload.loss)()
    weight = torch.ones(6, requires_grad=True)
    (weight * kept[0]).sum().backward()  # an inference tensor could not be kept for this


def test_an_evaluation_is_started_and_read_later() -> None:
    bench = Bench(dense_model(), samples())
    side = dense_model()
    metrics = bench.workload.start_evaluation([side])
    assert metrics() == metrics() == bench.workload.evaluate([side])


@needs_cuda
def test_an_evaluation_on_a_gpu_does_not_wait_for_training() -> None:
    bench = Bench(dense_model(), samples())
    data = bench.workload.validation.to("cuda")
    side = dense_model().cuda()
    expected = bench.workload.evaluate([dense_model()])
    prepare, loss = bench.workload.dataset.prepare, bench.workload.loss
    metrics = start_evaluation([side], data, 10, prepare=prepare, loss=loss)
    torch.cuda._sleep(2_000_000_000)  # about a second of "training" on the usual stream
    busy = torch.cuda.Event()
    busy.record()
    found = metrics()
    assert not busy.query()
    assert found[0] == expected[0]
    assert found[1][1] == pytest.approx(expected[1][1])
