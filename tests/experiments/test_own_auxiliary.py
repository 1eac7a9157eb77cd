"""Auxiliary networks in a user's own code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedoptima import ConfigError, Interrupted, replay, resume
from tests.experiments.runs import arguments, run
from tests.support.network import NAMES, Server, start_device, tiny_recipe

HERE = f"{__name__}:pooled"
GIVEN = {name: arguments()[name] for name in ("model", "train", "test")}


def pooled(activation: Tensor, classes: int) -> nn.Module:
    width = activation.flatten(2).shape[1]
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def of_wrong_shape(activation: Tensor, classes: int) -> nn.Module:
    return nn.Linear(3, classes)


def failing(activation: Tensor, classes: int) -> nn.Module:
    raise ValueError("not today")


def no_network(activation: Tensor, classes: int) -> str:
    return "a network"


class Summing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, activation: Tensor) -> Tensor:
        return (activation.sum((0, 2, 3)) * self.weight).reshape(1, -1)


def test_a_function_may_be_named_or_given(tmp_path: Path) -> None:
    named = run(method={"name": "fedoptima", "auxiliary": HERE}, out=tmp_path / "run")
    given = run(method={"name": "fedoptima", "auxiliary": pooled})
    assert named.weights_digest == given.weights_digest != run().weights_digest
    verdict = replay(tmp_path / "run", weights=True, allow_modules=[__name__], **GIVEN)  # type: ignore[arg-type]
    assert verdict.identical
    with pytest.raises(ConfigError, match=r"method\.auxiliary .*allow_modules="):
        replay(tmp_path / "run", weights=True, **GIVEN)  # type: ignore[arg-type]


def test_one_that_cannot_be_imported_has_to_be_given_again(tmp_path: Path) -> None:
    method = {"name": "fedoptima", "auxiliary": lambda *about: pooled(*about)}
    left = iter(range(40))
    with pytest.raises(Interrupted):
        run(method=method, out=tmp_path, interrupted=lambda: next(left, None) is None)
    with pytest.raises(ConfigError, match=r"given in Python; give it again"):
        resume(tmp_path, **GIVEN)  # type: ignore[arg-type]
    again = resume(tmp_path, method=method, **GIVEN)  # type: ignore[arg-type]
    assert again.weights_digest == run(method=method).weights_digest


def test_devices_over_the_network_load_it_by_its_name(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        method={"name": "fedoptima", "auxiliary": HERE, "scheduler": "fifo"}, stop={"rounds": 2}
    )
    with Server(recipe, tmp_path / "run") as server:
        devices = [start_device(name, server.address, tmp_path) for name in NAMES]
        server.result()
        for device in devices:
            device.answer()
    assert replay(tmp_path / "run", weights=True, allow_modules=["tests"]).identical


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (of_wrong_shape, "does not take what crosses the cut"),
        (failing, r"failed \(ValueError: not today\) \(.*test_own_auxiliary.py, line"),
        (no_network, "returned str, not a torch.nn.Module"),
        (lambda *_: nn.Flatten(), "no parameter that can be trained"),
        (lambda *_: Summing(), "samples first"),
        ("tests.experiments:missing", "cannot be imported"),
        ("shallow", r"unknown variant; .*package\.module:function"),
    ],
)
def test_mistakes_are_named(build: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(method={"name": "fedoptima", "auxiliary": build})
