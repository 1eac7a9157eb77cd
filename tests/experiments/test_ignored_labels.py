"""Labels that do not count, such as padding: in every part of a mini-batch there may be others."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

import fedoptima
from fedoptima.experiments.result import Result
from fedoptima.tasks.ready import CLASSIFICATION, token_level

WORDS = torch.arange(54).view(9, 6) % 20
LABELS = WORDS % 4
LABELS = LABELS.masked_fill(torch.arange(6) >= torch.arange(9)[:, None] * 2 // 3, -100)


def reader() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def trained(method: object) -> Result:
    side = {"momentum": 0.0, "learning_rate": 0.1}
    return fedoptima.simulate(
        model=reader(),
        train=(WORDS, LABELS),
        test=(WORDS, LABELS),
        task="token-level",
        method=method,  # type: ignore[arg-type]
        data={"partition": {"kind": "iid"}},
        fleet={"server": {"gflops": 1.0}, "devices": [{"name": "d", "gflops": 0.01}]},
        training={"batch_size": 9, "iterations": 1, "device": side, "server": side},
        epochs=3,
    )


def by_hand() -> nn.Module:
    model = deepcopy(reader())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(WORDS).flatten(0, 1), LABELS.flatten()).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("parts", [1, 2, 4, 9])
def test_the_step_does_not_depend_on_the_number_of_micro_batches(parts: int) -> None:
    result = trained({"name": "pipar", "micro_batches": parts})
    for name, tensor in by_hand().state_dict().items():
        torch.testing.assert_close(result.weights[name], tensor)


def test_a_share_counts_labels_and_is_never_0() -> None:
    task = token_level()
    assert LABELS[:2].eq(-100).all()
    shares = [task.share(part, LABELS) for part in LABELS.split(2)]
    assert sum(shares).item() == pytest.approx(1)
    assert all(share > 0 for share in shares)
    assert task.share(LABELS[:2], LABELS[:2]) > 0
    assert CLASSIFICATION.share(torch.zeros(2), torch.zeros(8)).item() == 0.25
