"""Auxiliary networks of tasks with a prediction for each position or pixel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import Masked
from fedoptima.preprocess.auxiliary import build_auxiliary
from fedoptima.tasks.output import Output

WORDS, PIXELS = Output(5, (7,)), Output(3, (8, 6))


@pytest.mark.parametrize("variant", ["classifier", "default", "deep"])
@pytest.mark.parametrize(
    ("side", "shape", "output"),
    [
        (nn.Linear(4, 4), (2, 7, 4), WORDS),
        (nn.Conv1d(4, 4, 3), (2, 4, 7), WORDS),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (2, 7, 4), WORDS),
        (nn.Conv2d(1, 4, 3), (2, 4, 8, 6), PIXELS),
        (nn.Conv2d(1, 4, 3), (2, 4, 4, 3), PIXELS),
    ],
)
def test_it_predicts_something_for_every_place(
    side: nn.Module, shape: tuple[int, ...], output: Output, variant: str
) -> None:
    auxiliary = build_auxiliary(side, torch.randn(shape), output, variant)
    assert auxiliary is not None
    assert auxiliary(torch.randn(shape)).shape == (2, *output.shape)


def test_masked_positions_keep_their_place() -> None:
    masked = Masked(torch.randn(2, 7, 4), torch.zeros(2, 7, dtype=torch.bool))
    auxiliary = build_auxiliary(nn.Linear(4, 4), masked, WORDS, "classifier")
    assert auxiliary is not None
    assert auxiliary(masked).shape == (2, 7, 5)


def test_a_cut_that_has_lost_the_places_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"no auxiliary network makes \(7, 5\) of \(4,\)"):
        build_auxiliary(nn.Linear(4, 4), torch.randn(2, 4), WORDS)
