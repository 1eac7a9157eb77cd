from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedoptima.config.training import OptimizerConfig, ScheduleConfig
from fedoptima.core.errors import ConfigError
from fedoptima.engine.learner import Learner
from fedoptima.engine.network import Network
from fedoptima.engine.optimizer import build_optimizer, plain_step, rate_factor


@pytest.mark.parametrize(
    ("schedule", "progress", "factor"),
    [
        (ScheduleConfig(), 0.0, 1.0),
        (ScheduleConfig(), 1.0, 1.0),
        (ScheduleConfig(kind="cosine"), 0.0, 1.0),
        (ScheduleConfig(kind="cosine"), 0.5, 0.5),
        (ScheduleConfig(kind="cosine"), 0.25, (1 + math.cos(math.pi / 4)) / 2),
        (ScheduleConfig(kind="cosine"), 1.0, 0.0),
        (ScheduleConfig(kind="cosine", floor=0.2), 1.0, 0.2),
        (ScheduleConfig(kind="linear"), 0.25, 0.75),
        (ScheduleConfig(kind="linear", floor=0.5), 0.5, 0.75),
        (ScheduleConfig(kind="linear", warmup=0.5), 0.25, 0.5),
        (ScheduleConfig(kind="linear", warmup=0.5), 0.5, 1.0),
        (ScheduleConfig(kind="linear", warmup=0.5), 0.75, 0.5),
        (ScheduleConfig(kind="constant", warmup=0.1), 0.05, 0.5),
        (ScheduleConfig(kind="cosine", warmup=0.1), 0.0, 0.01),
        (ScheduleConfig(kind="step"), 0.49, 1.0),
        (ScheduleConfig(kind="step"), 0.5, 0.1),
        (ScheduleConfig(kind="step"), 1.0, 0.01),
        (ScheduleConfig(kind="step", steps=(0.2, 0.4, 0.6), factor=0.5), 0.4, 0.25),
        (ScheduleConfig(kind="step", floor=0.05), 1.0, 0.05),
        (ScheduleConfig(kind="step", warmup=0.2), 0.1, 0.5),
    ],
)
def test_the_rate_follows_the_progress_of_the_run(
    schedule: ScheduleConfig, progress: float, factor: float
) -> None:
    assert rate_factor(schedule, progress) == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_optimiser_is_torchs_own_with_the_settings_given(name: str) -> None:
    parameter = nn.Parameter(torch.ones(2))
    settings = OptimizerConfig(name=name, learning_rate=0.3, weight_decay=0.02)  # type: ignore[arg-type]
    optimizer = build_optimizer(settings, [parameter])
    assert type(optimizer).__name__.lower() == name
    assert optimizer.param_groups[0]["lr"] == 0.3
    assert optimizer.param_groups[0]["weight_decay"] == 0.02


@pytest.mark.parametrize("decay", [0.0, 0.02])
@pytest.mark.parametrize(
    "settings",
    [
        OptimizerConfig(momentum=0.0),
        OptimizerConfig(momentum=0.9),
        OptimizerConfig(momentum=0.9, nesterov=True),
        OptimizerConfig(momentum=0.9, options={"dampening": 0.5}),
        OptimizerConfig(momentum=0.9, options={"maximize": True}),
        OptimizerConfig(momentum=0.9, options={"fused": False}),
        OptimizerConfig(name="adam"),
        OptimizerConfig(name="adam", options={"amsgrad": True, "foreach": True}),
        OptimizerConfig(name="adamw"),
        OptimizerConfig(name="adamw", options={"maximize": True}),
    ],
)
@pytest.mark.parametrize(
    "values",
    [
        torch.linspace(-1, 1, 50),
        torch.linspace(-1, 1, 50, dtype=torch.float64),
        torch.linspace(-1, 1, 50, dtype=torch.bfloat16),
        torch.linspace(-1, 1, 48).reshape(8, 6).T,
    ],
    ids=["float32", "float64", "bfloat16", "not contiguous"],
)
def test_a_plain_step_is_torchs_own(
    settings: OptimizerConfig, decay: float, values: torch.Tensor
) -> None:
    """Torch's, as it is without any of its faster forms: the last digit may differ."""
    settings = settings.model_copy(update={"weight_decay": decay})
    found = []
    for plain in (True, False):
        parameter, unused = nn.Parameter(values.clone()), nn.Parameter(torch.ones(2))
        optimizer = build_optimizer(settings, [unused, parameter])
        take = plain_step(optimizer)
        if not plain:
            for group in optimizer.param_groups:
                group |= {"foreach": False, "fused": False}
            take = optimizer.step
        for step in range(4):
            if step == 2:
                optimizer.param_groups[0]["lr"] *= 0.3
            if step == 3:  # as when a model is loaded
                optimizer.state.clear()
            (parameter**3).sum().backward()
            take()
            optimizer.zero_grad()
        found.append(parameter.detach())
        assert torch.equal(unused, torch.ones(2))
        assert parameter.requires_grad
        assert torch.is_grad_enabled()
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("options", [{"fused": False}, {"foreach": False}])
def test_a_form_of_the_step_that_is_asked_for_is_taken_to_the_last_digit(
    name: str, options: dict[str, object]
) -> None:
    settings = OptimizerConfig(name=name, learning_rate=0.3, momentum=0.9, options=options)  # type: ignore[arg-type]
    if name == "adam":
        settings = settings.model_copy(update={"momentum": 0.0})
    found = []
    for plain in (True, False):
        torch.manual_seed(1)
        parameter = nn.Parameter(torch.randn(1000))
        optimizer = build_optimizer(settings, [parameter])
        take = plain_step(optimizer) if plain else optimizer.step
        for _ in range(5):
            parameter.grad = torch.randn(1000)
            take()
        found.append(parameter.detach())
    assert torch.equal(*found)


def test_a_plain_step_takes_sparse_gradients_as_torch_does() -> None:
    found = []
    for plain in (True, False):
        table = nn.Embedding.from_pretrained(torch.ones(5, 2), freeze=False, sparse=True)
        optimizer = build_optimizer(OptimizerConfig(momentum=0.9), [table.weight])
        take = plain_step(optimizer) if plain else optimizer.step
        for _ in range(2):
            table(torch.tensor([1, 3])).sum().backward()
            take()
            optimizer.zero_grad()
        found.append(table.weight.detach())
    assert torch.equal(*found)


def test_a_side_with_nothing_to_train_is_refused_with_a_way_out() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ConfigError, match=r"the server has nothing to train.*split\.at"):
        Learner("the server", {"": Network(frozen)}, OptimizerConfig(), ScheduleConfig())
