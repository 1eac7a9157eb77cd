"""A step that is undone leaves nothing behind, whether the host is asked about it or not."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedoptima.config.training import OptimizerConfig, ScheduleConfig
from fedoptima.engine.learner import Learner
from fedoptima.engine.network import Network
from fedoptima.engine.payloads import Tensors, copy_of

CONFIGS = {
    "sgd": OptimizerConfig(momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": OptimizerConfig(name="adam"),
    "adamw with clipping": OptimizerConfig(name="adamw", weight_decay=0.01, clip_norm=1.0),
}


def trained(config: OptimizerConfig, steps: list[float], *, masked: bool) -> Tensors:
    """``steps``: what each step's inputs are multiplied by."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    learner = Learner(
        "x", {"": Network(model)}, config, ScheduleConfig(), undoable=True, masked=masked
    )
    for number, factor in enumerate(factor for factor in steps):
        seed = sum(step == 1 for step in steps[:number])
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        learner.begin()
        loss = cross_entropy(cast(Tensor, learner.call(inputs * factor)), torch.arange(8) % 3)
        loss.backward()  # type: ignore[no-untyped-call]
        learner.note_loss(loss)
        assert bool(learner.learn_or_undo() > 0) == (factor != 1)
    learner.take_losses().check()
    return copy_of(learner.tensors())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("bad", [0, 2])
def test_an_undone_step_is_as_if_it_had_not_been(name: str, bad: int, masked: bool) -> None:
    steps = [1.0] * 4
    steps.insert(bad, float("nan"))
    without = trained(CONFIGS[name], [1.0] * 4, masked=masked)
    for key, tensor in trained(CONFIGS[name], steps, masked=masked).items():
        assert torch.equal(tensor, without[key]), key


@pytest.mark.parametrize("name", CONFIGS)
def test_both_ways_of_undoing_a_step_train_alike(name: str) -> None:
    steps = [1.0, float("nan"), 1.0]
    told = trained(CONFIGS[name], steps, masked=False)
    for key, tensor in trained(CONFIGS[name], steps, masked=True).items():
        assert torch.allclose(tensor, told[key], atol=1e-6), key
