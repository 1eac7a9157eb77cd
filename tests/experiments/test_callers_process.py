"""What a caller has set in its process, or does beside a run, does not reach the run's result."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn

from tests.experiments.runs import run


def with_dropout() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dropped = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.5))
        return nn.Sequential(nn.Flatten(), dropped, nn.Linear(8, 3))


@pytest.mark.parametrize("method", ["fedoptima", "fl"])
@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_caller_that_has_turned_gradients_off_trains_all_the_same(
    without: type[torch.no_grad], method: str
) -> None:
    expected = run(method=method, epochs=1.0, workers=1).weights_digest
    with without():
        assert run(method=method, epochs=1.0, workers=1).weights_digest == expected
        assert not torch.is_grad_enabled()


def test_trainings_in_two_threads_of_a_process_end_as_each_does_alone() -> None:
    together = Barrier(2)

    def train(seed: int, model: nn.Module) -> str:
        together.wait()
        return run(model=model, seed=seed, epochs=4.0, workers=1).weights_digest

    models = [with_dropout(), with_dropout()]  # here: its weights come from torch's one generator
    with ThreadPoolExecutor(2) as threads:
        digests = list(threads.map(train, [1, 2], models))
    for seed, digest in zip((1, 2), digests, strict=True):
        alone = run(model=with_dropout(), seed=seed, epochs=4.0, workers=1)
        assert alone.weights_digest == digest
