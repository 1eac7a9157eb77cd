"""The server's steps of a FedOptima run by themselves, one after another, in a bare loop.

python -m benchmarks.server_chain ASKED     (from benchmarks.sides)
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from benchmarks.sides import Asked
from benchmarks.workloads import LEARNING_RATE, MOMENTUM, recipe, warm_up
from fedoptima.engine.payloads import name_activation, rebuild_activation
from fedoptima.experiments.device_engines import device_loader
from fedoptima.experiments.setup import prepare


def main() -> None:
    torch.set_num_threads(1)
    warm_up()
    asked = Asked.read()
    workload = asked.workload
    experiment = prepare(recipe(workload, Path(asked.data)))
    training = experiment.workload
    sides = training.sides(experiment.plan())
    assert sides.server is not None
    server = sides.server.train()
    optimizer = torch.optim.SGD(server.parameters(), LEARNING_RATE, MOMENTUM)
    batches = []
    with torch.no_grad():
        for name, rows in experiment.shares.items():
            inputs, labels = device_loader(experiment.recipe, training, name, rows).batch(0)
            batches.append((name_activation(sides.device(inputs)), labels))
    steps = workload.clients * workload.rounds * workload.steps
    start = time.perf_counter()
    for step in range(steps):
        tensors, labels = batches[step % len(batches)]
        output = server(rebuild_activation(tensors, sides.activation))
        optimizer.zero_grad()
        training.loss(output, labels).backward()
        optimizer.step()
    asked.reply(time.perf_counter() - start, server.state_dict(), steps=steps)


if __name__ == "__main__":
    main()
