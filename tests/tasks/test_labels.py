from __future__ import annotations

import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.tasks.labels import LabelRule
from fedoptima.tasks.ready import READY
from fedoptima.tasks.task import Task

PIXELS = torch.tensor([[[0, 1], [2, -100]]])


@pytest.mark.parametrize(
    ("task", "labels", "classes", "shape", "dtype"),
    [
        ("classification", torch.tensor([0, 3]), 4, (), torch.int64),
        ("multi-label", torch.tensor([[True, False, True]]), 3, (3,), torch.float32),
        ("regression", torch.tensor([1, 2]), 1, (), torch.float32),
        ("regression", torch.zeros(2, 5, dtype=torch.float64), 5, (5,), torch.float32),
        ("token-level", torch.tensor([[0, 1, -100]], dtype=torch.int32), 2, (3,), torch.int64),
        ("dense", PIXELS, 3, (2, 2), torch.int64),
    ],
)
def test_labels_are_kept_as_their_task_needs_them(
    task: str, labels: torch.Tensor, classes: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    made = READY[task]()
    kept = made.as_labels(labels, "labels are")
    made.check_labels(kept, classes, "data")
    rule = made.rule(kept, classes)
    assert made.classes_in(kept) == classes
    assert (kept.dtype, rule.dtype, rule.shape) == (dtype, dtype, shape)
    assert rule.nbytes == kept.nbytes // len(kept)


def test_what_a_model_predicts_follows_from_the_labels() -> None:
    assert READY["classification"]().output(torch.zeros(2), 4).shape == (4,)
    assert READY["token-level"]().output(torch.zeros(2, 7), 4).shape == (7, 4)
    assert READY["dense"]().output(PIXELS, 3).shape == (3, 2, 2)


def test_ignored_labels_are_within_the_range_and_no_others_below_it() -> None:
    rule = LabelRule((2, 2), torch.int64, 0, 2, ignored=-100)
    assert rule.comparable(PIXELS).min() == 0
    assert rule.comparable(PIXELS - 5).min() == -105
    assert torch.equal(rule.within_range(PIXELS), PIXELS)
    assert rule.within_range(PIXELS * 50).tolist() == [[[0, 2], [2, 0]]]


def test_numbers_are_bounded_by_those_of_the_data() -> None:
    rule = READY["regression"]().rule(torch.tensor([-3.0, 5.0]), 1)
    assert (rule.low, rule.high) == (-5000, 5000)


@pytest.mark.parametrize(
    ("task", "labels", "classes", "message"),
    [
        ("classification", torch.tensor([0, 4]), 4, "labels run from 0 to 4, but 4 classes"),
        ("multi-label", torch.tensor([[0.0, 2.0]]), 2, "outside of 0 to 1 in row 0"),
        ("multi-label", torch.tensor([0.0, 1.0]), 1, r"for each class: labels.unsqueeze\(1\)"),
        ("regression", torch.tensor([float("inf")]), 1, "NaN or infinite in row 0"),
        ("classification", torch.zeros(2, 3, dtype=torch.int64), 1, "choose task = 'token-level'"),
        ("classification", torch.tensor([[0], [1]]), 2, r"for each sample: labels.squeeze\(1\)$"),
        (
            "classification",
            torch.eye(3).long(),
            3,
            r"labels.argmax\(1\); or choose task = 'multi-l",
        ),
    ],
)
def test_labels_that_do_not_fit_are_named(
    task: str, labels: torch.Tensor, classes: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        READY[task]().check_labels(labels, classes, "data")


def test_a_task_of_the_users_own_goes_by_the_kind_of_its_labels() -> None:
    task = Task(loss=torch.nn.functional.mse_loss)
    assert task.as_labels(torch.tensor([1, 2], dtype=torch.int8), "").dtype == torch.int64
    assert task.as_labels(torch.tensor([1.0]).double(), "").dtype == torch.float32
