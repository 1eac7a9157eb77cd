"""A batch may have several inputs: a tuple, or a dict of tensors by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fedoptima
from fedoptima.core.errors import ConfigError

FLEET = {
    "server": {"gflops": 1.0},
    "devices": [{"name": "d", "count": 2, "gflops": 0.001, "mbps": 100.0}],
}
RATE = {"learning_rate": 0.1}


class Pair(nn.Module):
    """Reads an image and some numbers about it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.look = nn.Linear(12, 8)
        self.weigh = nn.Linear(4, 8)
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor:
        out: Tensor = self.body(self.look(image.flatten(1)) + self.weigh(numbers))
        return out


def samples(count: int, kind: type) -> tuple[object, Tensor]:
    random = torch.Generator().manual_seed(count)
    image = torch.randn(count, 3, 2, 2, generator=random)
    numbers = torch.randn(count, 4, generator=random, dtype=torch.float64)
    labels = (numbers[:, :3] + image.flatten(1)[:, :3]).argmax(1)
    inputs = {"numbers": numbers, "image": image} if kind is dict else (image, numbers)
    return inputs, labels


@pytest.mark.parametrize(
    ("method", "kind"),
    [("fedoptima", tuple), ("fedoptima", dict), ("fl", tuple), ("fl", dict), ("pipar", dict)],
)
def test_a_model_of_two_inputs_learns(method: str, kind: type) -> None:
    result = fedoptima.simulate(
        model=Pair(),
        train=samples(240, kind),
        test=samples(60, kind),
        fleet=FLEET,
        method=method,
        data={"partition": {"kind": "iid"}},
        training={"batch_size": 10, "device": RATE, "server": RATE},
        epochs=5,
    )
    first, last = result.curve[0], result.curve[-1]
    assert last.accuracy > max(0.5, first.accuracy)


def test_two_processes_train_it_as_one_does() -> None:
    ends = [
        fedoptima.simulate(
            model=Pair(),
            train=samples(60, dict),
            test=samples(20, dict),
            fleet=FLEET,
            training={"batch_size": 10},
            epochs=1,
            seed=3,
            workers=workers,
        ).curve[-1]
        for workers in (1, 2)
    ]
    assert ends[0] == ends[1]


def test_inputs_of_different_lengths_are_refused() -> None:
    (image, numbers), labels = samples(20, tuple)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="19 inputs in one of 2 input tensors but 20 labels"):
        fedoptima.simulate(
            model=Pair(),
            train=((image, numbers[:19]), labels),
            test=samples(20, tuple),
            fleet=FLEET,
            epochs=1,
        )


def test_test_data_with_other_inputs_are_refused() -> None:
    inputs, labels = samples(20, dict)
    with pytest.raises(ConfigError, match=r"numbers \(4,\), image \(3, 2, 2\), test samples 0 "):
        fedoptima.simulate(
            model=Pair(),
            train=(inputs, labels),
            test=samples(20, tuple),
            fleet=FLEET,
            epochs=1,
        )
