"""The methods of docs/write-a-method.md do what it says, in as few lines as it promises."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from fedoptima import simulate
from fedoptima.core.jobs import Merge
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER
from fedoptima.data.custom import as_dataset
from fedoptima.data.loader import Loader
from fedoptima.methods.fedasync import fedasync
from fedoptima.testing.world import Description, Device, World
from tests.documents.blocks import ROOT, blocks_of
from tests.experiments.runs import FLEET, data
from tests.methods.references import Worker

FILES = {
    named[1]: block.code
    for block in blocks_of(ROOT / "docs" / "write-a-method.md")
    if (named := re.match(r"# (\S+\.py)\n", block.code))
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("my_methods",)]:
        del sys.modules[name]
    sys.modules.pop("test_my_methods", None)


def module(name: str) -> ModuleType:
    __import__(name)
    return sys.modules[name]


def test_each_takes_fewer_than_40_lines() -> None:
    assert set(FILES) == {"my_methods/fedprox.py", "my_methods/evened.py", "test_my_methods.py"}
    assert all(len(text.splitlines()) < 40 for text in FILES.values())


def test_its_tests_pass(written: Path) -> None:
    found = vars(module("test_my_methods"))
    tests = [check for name, check in found.items() if name.startswith("test_")]
    assert len(tests) == 2
    for check in tests:
        check()


class Proximal(Worker):
    """FedProx's device, written by hand."""

    def __init__(self, model: nn.Sequential, loader: Loader, mu: float) -> None:
        super().__init__(model, loader)
        self.mu = mu

    def train(self, start: dict[str, Tensor]) -> dict[str, Tensor]:
        self.start = start
        return super().train(start)

    def learn(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        for name, weight in self.model.named_parameters():
            loss = loss + self.mu / 2 * ((weight - self.start[name]) ** 2).sum()
        loss.backward()
        self.optimizer.step()


def test_fedprox_comes_to_what_is_written_by_hand(written: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    rows = {"fast": range(0, 20), "middle": range(20, 40), "slow": range(40, 60)}
    file = tmp_path / "partition.json"
    file.write_text(json.dumps({name: list(held) for name, held in rows.items()}))

    def trained(mu: float) -> dict[str, Tensor]:
        result = simulate(
            model=model,
            train=data(),
            test=data(48, seed=1),
            data={"partition": {"kind": "file", "file": str(file)}},
            fleet=FLEET,
            method={"name": "my_methods.fedprox:fedprox", "mu": mu},
            training={"batch_size": 5, "device": {"learning_rate": 0.05, "momentum": 0.9}},
            stop={"rounds": 3},
            seed=7,
        )
        return dict(result.weights)

    dataset = as_dataset(data(), data(48, seed=1))
    workers = {
        name: Proximal(
            model, Loader(dataset, torch.tensor(held), batch_size=5, seed=7, node=name), 1.0
        )
        for name, held in rows.items()
    }
    merged = deepcopy(model.state_dict())
    for _ in range(3):
        states = [workers[name].train(merged) for name in sorted(rows)]
        merged = {key: sum(state[key] / 3 for state in states) for key in merged}
    near, far = trained(1.0), trained(0.0)
    for key, tensor in merged.items():
        torch.testing.assert_close(near[key], tensor, rtol=1e-4, atol=1e-5)
    distance = [sum(((w[k] - model.state_dict()[k]) ** 2).sum() for k in w) for w in (near, far)]
    assert distance[0] < distance[1]


def test_the_evened_weight_takes_from_whoever_is_merged_more_often(written: Path) -> None:
    build = module("my_methods.evened").evened

    def influence(method: object) -> dict[str, float]:
        devices = [Device(8.0), Device(1.0)]
        world = World(Description(method, devices, stop=StopRule(rounds=30)))  # type: ignore[arg-type]
        world.run()
        found = {"d0": 0.0, "d1": 0.0}
        for order in world.jobs(SERVER, Merge):
            for part in order.job.parts:  # type: ignore[union-attr]
                found[part.device] += part.weight
        return found

    plain, even = influence(fedasync(2)), influence(build(2))
    assert even["d1"] / even["d0"] > 1.5 * plain["d1"] / plain["d0"]
