"""FL against FedAvg as anybody would write it, bit for bit."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedoptima import simulate
from fedoptima.data.custom import as_dataset
from fedoptima.data.loader import Loader
from tests.experiments.runs import FLEET, data

ROWS = {"fast": range(0, 13), "middle": range(13, 44), "slow": range(44, 65)}  # unequal
BATCH, ROUNDS, SEED = 5, 3, 7


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
    )


def fedavg(model: nn.Module) -> dict[str, Tensor]:
    dataset = as_dataset(data(), data(48, seed=1))
    workers = {name: deepcopy(model) for name in ROWS}
    optimizers = {
        name: torch.optim.SGD(worker.parameters(), lr=0.05, momentum=0.9, fused=True)
        for name, worker in workers.items()
    }
    loaders = {
        name: Loader(dataset, torch.tensor(rows), batch_size=BATCH, seed=SEED, node=name)
        for name, rows in ROWS.items()
    }
    held = sum(len(rows) for rows in ROWS.values())
    merged = deepcopy(model.state_dict())
    for number in range(ROUNDS):
        for name, worker in workers.items():
            worker.load_state_dict(merged)
            steps = len(ROWS[name]) // BATCH
            for step in range(number * steps, (number + 1) * steps):
                inputs, labels = loaders[name].batch(step)
                optimizers[name].zero_grad()
                cross_entropy(worker(inputs), labels).backward()
                optimizers[name].step()
        states = [(len(ROWS[name]), workers[name].state_dict()) for name in ROWS]
        merged = {
            key: (sum(samples * state[key].double() for samples, state in states) / held).float()
            if tensor.is_floating_point()
            else max(state[key] for _, state in states).clone()
            for key, tensor in merged.items()
        }
    return merged


def test_fl_equals_a_hand_written_fedavg_bit_for_bit(tmp_path: Path) -> None:
    file = tmp_path / "partition.json"
    file.write_text(json.dumps({name: list(rows) for name, rows in ROWS.items()}))
    model = network()
    expected = fedavg(model)
    result = simulate(
        model=model,
        train=data(),
        test=data(48, seed=1),
        data={"partition": {"kind": "file", "file": str(file)}},
        fleet=FLEET,
        method="fl",
        training={"batch_size": BATCH, "device": {"learning_rate": 0.05, "momentum": 0.9}},
        stop={"rounds": ROUNDS},
        seed=SEED,
    )
    assert result.rounds == ROUNDS
    assert result.weights.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(result.weights[key], tensor), key
    counted = result.weights["0.1.num_batches_tracked"]
    assert int(counted) == ROUNDS * (31 // BATCH)  # of the one that took the most steps
    assert not torch.equal(result.weights["0.1.running_mean"], torch.zeros(4))
