from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.core.method import ServerTraining
from tests.engine.bench import Bench, dense_model, same, samples


class Counting(nn.Linear):
    """Notes the batches it is run on, also those of its copies."""

    seen: ClassVar[list[tuple[int, ...]]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        Counting.seen.append(tuple(inputs.shape))
        return super().forward(inputs)


@pytest.mark.parametrize("batch", [4, 40])  # of 28 samples: they are used over and over
def test_the_speed_is_measured_on_batches_of_this_tasks_data_and_model(batch: int) -> None:
    workload = Bench(nn.Sequential(Counting(6, 8), nn.Linear(8, 3)), samples()).workload
    Counting.seen.clear()
    assert workload.measure_speed(seconds_budget=0.0, batch=batch) > 0
    assert set(Counting.seen) == {(batch, 6)}
    assert len(Counting.seen) >= 4  # profiled once, then timed


class Clocked(nn.Linear):
    """Takes a second for each sample, on a clock of its own."""

    now = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        Clocked.now += len(inputs)
        return super().forward(inputs)


@pytest.mark.parametrize("batch", [4, 32])
def test_the_speed_is_the_batchs_flops_over_its_time(batch: int) -> None:
    workload = Bench(nn.Sequential(Clocked(6, 8), nn.Linear(8, 3)), samples()).workload
    per_sample = 3 * 2 * (6 * 8 + 8 * 3)  # forward, and backward by weights and by inputs
    found = workload.measure_speed(seconds_budget=0.0, batch=batch, clock=lambda: Clocked.now)
    assert found == pytest.approx(per_sample)


def test_measuring_the_speed_leaves_model_and_generator_untouched() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)),
        nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3)),
    )
    workload = Bench(model, samples()).workload
    before, generator, mode = deepcopy(model.state_dict()), torch.get_rng_state(), model.training
    workload.measure_speed(seconds_budget=0.0)
    assert same(model.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.training == mode
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_example_is_made_of_one_sample_if_there_is_no_other() -> None:
    inputs = samples(1)[0]
    bench = Bench(dense_model(), (inputs, torch.tensor([2])), batch=1)
    assert torch.equal(bench.workload.example, inputs.expand(2, -1))


def test_a_batch_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch = 0"):
        Bench(dense_model(), samples()).workload.measure_speed(batch=0)


def test_copies_on_the_server_share_nothing_unless_robust_merging_compares_their_steps() -> None:
    """Side by side, one would read on a GPU what another is still computing."""
    own = Bench(
        dense_model(), samples(), auxiliary="none", training=ServerTraining.PER_DEVICE
    ).workload
    assert own.copies_share_nothing
    task = replace(own.task, loss=lambda outputs, labels: outputs.sum())
    assert not replace(own, dataset=replace(own.dataset, task=task)).copies_share_nothing
    assert not replace(own, robust="refuse").copies_share_nothing
    assert not replace(own, local_loss=lambda loss, weights, received: loss).copies_share_nothing
    assert not Bench(dense_model(), samples()).workload.copies_share_nothing


def test_steps_that_draw_in_recurrent_layers_are_not_recorded() -> None:
    """On a GPU all of them draw from one state."""
    draws, one = (nn.LSTM(6, 4, num_layers=n, dropout=0.2 * (n > 1)) for n in (2, 1))
    workload = Bench(dense_model(), samples()).workload
    assert workload.server_records
    assert replace(workload, model=one).server_records
    assert not replace(workload, model=draws).server_records
