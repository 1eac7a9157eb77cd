"""A device's own labels, where they are numbers to learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.join import DeviceSetup, build_workplace
from fedoptima.experiments.server_setup import instructions, prepare_server
from fedoptima.named_code import ANY_CODE
from fedoptima.runtime.address import Address
from fedoptima.runtime.device.state import StateFile

HERE = "tests.experiments.test_own_labels"
TABLE = {
    "task": "regression",
    "model": {"name": f"{HERE}:network"},
    "data": {"name": f"{HERE}:two_numbers"},
    "training": {"batch_size": 4},
    "stop": {"epochs": 1.0},
    "threads": 1,
}
Data = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def labelled(*shape: int) -> Data:
    part = torch.zeros(20, 6), torch.zeros(20, *shape)
    return part, part


def two_numbers() -> Data:
    return labelled(2)


def one_number() -> Data:
    return labelled()


def three_numbers() -> Data:
    return labelled(3)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [("one_number", "1 number here and 2 there"), ("three_numbers", "3 numbers here and 2 there")],
)
def test_labels_of_more_or_fewer_numbers_than_the_servers_do_not_fit(
    tmp_path: Path, data: str, complaint: str
) -> None:
    """Of classes a device may hold some; a number that is missing is another task."""
    told = instructions(prepare_server(validate(Recipe, TABLE, "test")))

    def device(data: str) -> DeviceSetup:
        state = StateFile(tmp_path / "pi.json")
        return DeviceSetup(
            "pi", Address("127.0.0.1", 1), state, data=f"{HERE}:{data}", code=ANY_CODE
        )

    assert build_workplace(device("two_numbers"), told).samples == 20
    with pytest.raises(ConfigError, match=f"does not fit the server's data: .* {complaint}"):
        build_workplace(device(data), told)
