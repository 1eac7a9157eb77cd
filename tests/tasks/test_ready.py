from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.named_code import NO_CODE
from fedoptima.tasks.ready import (
    build_task,
    classification,
    dense,
    is_ours,
    regression,
    token_level,
)
from fedoptima.tasks.task import Loss, Task

HERE = "tests.tasks.test_ready"


def own(scale: float = 1.0) -> Task:
    return Task(loss=lambda outputs, labels: scale * (outputs - labels).mean())


def no_task() -> str:
    return "no task"


def share(predictions: Tensor, labels: Tensor) -> float:
    return 0.5


def test_the_loss_of_numbers_does_not_spread_over_a_square() -> None:
    outputs, labels = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])
    assert regression().loss(outputs, labels) == 2.0


class Remembers(nn.CrossEntropyLoss):
    """What a user may write: on a GPU its calls must come one after the other."""


@pytest.mark.parametrize(
    ("loss", "ours"),
    [
        (None, True),
        (nn.CrossEntropyLoss(label_smoothing=0.1), True),
        (partial(nn.functional.cross_entropy, label_smoothing=0.1), True),
        (Remembers(), False),
        (lambda outputs, labels: outputs.sum(), False),
    ],
)
@pytest.mark.parametrize("build", [classification, regression, token_level])
def test_a_loss_of_torchs_is_told_from_one_of_the_users(
    build: Callable[..., Task], loss: Loss | None, ours: bool
) -> None:
    task = build() if loss is None else build(loss=loss)
    assert is_ours(task.loss) is ours


def test_a_batch_of_padding_alone_has_a_loss_of_zero() -> None:
    labels = torch.full((2, 3), -100)
    assert token_level().loss(torch.randn(2, 3, 4), labels) == 0.0


def test_tokens_have_their_classes_last_and_pixels_second() -> None:
    outputs = torch.randn(2, 3, 4)
    labels = torch.tensor([[0, 1, -100], [3, 2, 1]])
    expected = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())
    assert torch.allclose(token_level().loss(outputs, labels), expected)
    pixels = outputs.movedim(-1, 1)[..., None]
    assert torch.allclose(dense().loss(pixels, labels[..., None]), expected)


def test_a_task_and_its_options_may_be_named() -> None:
    assert build_task(f"{HERE}:own", {"scale": 2.0}).loss(torch.ones(1), torch.zeros(1)) == 2.0
    assert build_task("dense", {"metrics": {"share": f"{HERE}:share"}}).metrics["share"] is share


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{HERE}:no_task", "returned str; it must return a fedoptima.Task"),
        ("token_level", "did you mean 'token-level'"),
    ],
)
def test_a_name_that_is_no_task_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_task(name)


@pytest.mark.parametrize("name", [f"{HERE}:own", "dense"])
def test_code_of_a_task_is_loaded_only_where_that_is_allowed(name: str) -> None:
    with pytest.raises(ConfigError, match="allow its package"):
        build_task(name, {"metrics": {"share": f"{HERE}:share"}}, NO_CODE)
