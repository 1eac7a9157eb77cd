"""Which scale int8 activations should have: one for each sample, each channel, or both.

    python -m tools.codec_scales [RECIPE] [--data DIR] [--samples 10000] [--epochs 4] [--seeds 3]

A device side learns from its auxiliary network, and so does not depend on what is sent. Its
activations train one server side per way of coding them, all from the same first weights and on the
same batches; what differs between them at the end is the coding. Also said: the error of the coded
activations, as a share of their size, and what the scales add to the bytes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import fedoptima
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.seeding import derive
from fedoptima.experiments.setup import Experiment, prepare
from fedoptima.models.activation import call, map_tensors

RECIPE = Path(__file__).parents[1] / "recipes" / "testbed_a_vgg5_cifar10.toml"
LARGEST = 127

WAYS: dict[str, Callable[[int], tuple[int, ...]]] = {  # dimensions that share a scale
    "sample": lambda dim: tuple(range(1, dim)),
    "channel": lambda dim: (0, *range(2, dim)),
    "sample and channel": lambda dim: tuple(range(2, dim)),
}


def coded(tensor: Tensor, way: str) -> tuple[Tensor, int]:
    """What arrives, and the number of scales. A flat tensor has no channels."""
    shared = WAYS[way if tensor.dim() > 2 else "sample"](tensor.dim())
    scale = tensor.abs().amax(shared, keepdim=True) / LARGEST
    return (tensor / scale).nan_to_num(0).round() * scale, scale.numel()


class Ways:
    """The same training, coded in each way."""

    def __init__(self, experiment: Experiment) -> None:
        self.workload, plan = experiment.workload, experiment.plan()
        sides = self.workload.sides(plan)
        assert sides.server is not None
        assert sides.auxiliary is not None
        self.device, self.auxiliary = sides.device, sides.auxiliary
        self.servers = {way: deepcopy(sides.server) for way in ("float32", *WAYS)}
        self.errors: dict[str, list[float]] = {way: [] for way in WAYS}
        self.overhead: dict[str, float] = {}
        self.last = plan.device_blocks[-1].name

    def train(self, samples: int, epochs: int, seed: int) -> None:
        workload, rates = self.workload, self.workload.device_optimizer
        batch = workload.planning.batch_size
        steps = epochs * (samples // batch)
        learners = [[*self.device.parameters(), *self.auxiliary.parameters()]]
        learners += [list(server.parameters()) for server in self.servers.values()]
        optimizers = [torch.optim.SGD(own, rates.learning_rate, rates.momentum) for own in learners]
        schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, steps) for o in optimizers]
        for module in (self.device, self.auxiliary, *self.servers.values()):
            module.train()
        shuffle = torch.Generator().manual_seed(seed)
        train = workload.dataset.train
        for epoch in range(epochs):
            rows = torch.randperm(samples, generator=shuffle)
            for place in range(0, samples - batch + 1, batch):
                own = rows[place : place + batch].to(train.index_device)
                inputs, labels = train.order(own, seed=derive(seed, place), epoch=epoch)()
                self._step(workload.dataset.prepare(inputs), labels, optimizers)
                for schedule in schedules:
                    schedule.step()

    def _step(self, inputs: object, labels: Tensor, optimizers: Sequence[Any]) -> None:
        output = call(self.device, inputs)
        losses = [self.workload.loss(cast(Tensor, call(self.auxiliary, output)), labels)]
        for way, server in self.servers.items():
            sent = map_tensors(output, lambda tensor, way=way: self._sent(tensor, way))
            losses.append(self.workload.loss(cast(Tensor, call(server, sent)), labels))
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _sent(self, tensor: Tensor, way: str) -> Tensor:
        tensor = tensor.detach()
        if way == "float32" or not tensor.is_floating_point():
            return tensor
        arrives, scales = coded(tensor, way)
        self.errors[way].append(float((arrives - tensor).norm() / tensor.norm()))
        self.overhead[way] = 4 * scales / tensor.numel()
        return arrives

    def accuracy(self, server: nn.Module) -> float:
        return dict(self.workload.evaluate([self.device, server]))["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", type=Path, nargs="?", default=RECIPE)
    parser.add_argument("--data", help="folder of the data set")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--split", type=int, help="blocks on the device; unset: by the plan")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    table = fedoptima.load_recipe(asked.recipe).model_dump(exclude_unset=True)
    table |= {"device": asked.device}
    if asked.data:
        table["data"] |= {"directory": asked.data}
    if asked.split:
        table["split"] = {"at": asked.split}
    found: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(1, asked.seeds + 1):
        torch.manual_seed(seed)
        ways = Ways(prepare(validate(Recipe, table | {"seed": seed}, "experiment")))
        samples = min(asked.samples, len(ways.workload.dataset.train))
        ways.train(samples, asked.epochs, seed)
        for way, server in ways.servers.items():
            found.setdefault(way, []).append(ways.accuracy(server))
        for way in WAYS:
            errors[way].append(statistics.mean(ways.errors[way]))
    print(f"{asked.recipe.stem}, cut after {ways.last}, {samples} samples, {asked.epochs} epochs")
    print("| scale for each | error | scales, bytes per number | accuracy | minus float32 |")
    print("|---|---:|---:|---:|---:|")
    for way, accuracies in found.items():
        difference = [own - base for own, base in zip(accuracies, found["float32"], strict=True)]
        error = f"{statistics.mean(errors[way]):.2%}" if way in errors else ""
        added = f"{ways.overhead[way]:.3f}" if way in errors else ""
        shown = " ".join(f"{100 * each:+.2f}" for each in difference)
        print(f"| {way} | {error} | {added} | {statistics.mean(accuracies):.2%} | {shown} |")


if __name__ == "__main__":
    main()
