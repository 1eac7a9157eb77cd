"""The user's own recurrent networks under every method that splits the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.types import SERVER
from fedoptima.experiments.result import Result
from tests.experiments.runs import run

SERVER_SPEED = 0.05e9  # FLOP/s, of the runs' fleet
SPLIT = ["fedoptima", "splitfed", "pipar", "oafl"]


class LastStep(nn.Module):
    """A block of its own: a recurrent layer, and its output at the last word."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(8, 8, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        last: Tensor = self.layer(words)[0][:, -1]
        return last


class Classifier(nn.Module):
    """No Sequential: where it may be cut is found in its graph."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.layer = kind(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(words))[0][:, -1])


def sentences(count: int = 96, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The class is the last word; the words before it mean nothing."""
    words = torch.randint(3, 12, (count, 6), generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(count) % 3
    words[:, -1] = labels
    return words, labels


def trained(model: nn.Module, method: str, **changes: object) -> Result:
    return run(
        model=model,
        train=sentences(),
        test=sentences(48, seed=1),
        method=method,
        epochs=4,
        **changes,
    )


def in_blocks(kind: type[nn.Module]) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(12, 8), LastStep(kind), nn.Linear(8, 3))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("method", SPLIT)
def test_a_recurrent_classifier_trains(method: str, kind: type[nn.Module]) -> None:
    result = trained(in_blocks(kind), method)
    assert result.accuracy is not None
    assert result.accuracy > 0.5


def test_a_module_of_ones_own_is_cut_around_its_recurrent_layer() -> None:
    torch.manual_seed(1)
    result = trained(Classifier(nn.LSTM), "fedoptima")
    assert result.accuracy is not None
    assert result.accuracy > 0.5


def test_a_recurrent_layer_on_the_server_takes_time() -> None:
    result = trained(in_blocks(nn.LSTM), "fedoptima")
    forward = 6 * 2 * 4 * 8 * (8 + 8)  # FLOPs for the six words of one sentence
    assert result.usage[SERVER].busy > result.server_samples * forward / SERVER_SPEED
