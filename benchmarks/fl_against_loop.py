"""What the simulator costs: FL on the virtual clock against a bare PyTorch loop of the same steps.

16 clients, 500 CIFAR-10-sized images each, VGG-5, batch 50, 5 rounds. Both take the same batches
with the same augmentation from the same loader, keep a momentum per client, and average with the
same weights; at the end both have the same model, bit for bit, which is checked. The loop is what a
careful person would write by hand: no trace, no clock, no evaluation. Times are of pairs run in
turn, so that a busy machine slows both.
"""

from __future__ import annotations

import statistics
import time
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.noise import images
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.data.loader import Loader
from fedoptima.engine.determinism import deterministic
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import Experiment, prepare
from fedoptima.experiments.simulated_run import run_experiment

CLIENTS, SAMPLES, BATCH, ROUNDS, PAIRS = 16, 500, 50, 5, 5
OPTIMIZER = {"learning_rate": 0.01, "momentum": 0.9}


def build() -> Experiment:
    recipe = {
        "name": "fl-against-loop",
        "model": {"name": "vgg5"},
        "data": {"name": "noise", "partition": {"kind": "iid"}},
        "fleet": {
            "server": {"gflops": 150.0},
            "devices": [{"name": "client", "count": CLIENTS, "gflops": 5.0}],
        },
        "method": {"name": "fl"},
        # One evaluation, at the end, as in every run; the loop does it too.
        "training": {"batch_size": BATCH, "device": OPTIMIZER, "evaluate_every": 1000.0},
        "stop": {"rounds": ROUNDS},
    }
    given = Given(dataset=images(samples=CLIENTS * SAMPLES))
    return prepare(validate(Recipe, recipe, "benchmark"), given)


def bare_loop(experiment: Experiment) -> dict[str, Tensor]:
    data = experiment.task.dataset
    clients: list[tuple[nn.Module, torch.optim.Optimizer, Loader]] = []
    for name, rows in experiment.shares.items():
        model = deepcopy(experiment.task.model).train()
        loader = Loader(data, rows, batch_size=BATCH, seed=experiment.recipe.seed, node=name)
        optimizer = torch.optim.SGD(
            model.parameters(), OPTIMIZER["learning_rate"], OPTIMIZER["momentum"]
        )
        clients.append((model, optimizer, loader))
    weights = deepcopy(experiment.task.model.state_dict())
    for round_number in range(ROUNDS):
        states = []
        for model, optimizer, loader in clients:
            model.load_state_dict(weights)
            for step in range(
                round_number * loader.per_epoch, (round_number + 1) * loader.per_epoch
            ):
                inputs, labels = loader.batch(step)
                optimizer.zero_grad()
                cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            states.append(deepcopy(model.state_dict()))
        for name, tensor in weights.items():
            if tensor.is_floating_point():
                weights[name] = sum(state[name] * (1 / CLIENTS) for state in states)
            else:
                weights[name] = max(state[name] for state in states)
    whole = deepcopy(experiment.task.model).eval()
    whole.load_state_dict(weights)
    with torch.no_grad():
        for part in data.test.inputs.split(500):
            whole(data.prepare(part))
    return weights


def measure() -> dict[str, object]:
    experiment = build()
    ratios, simulated_seconds, loop_seconds = [], [], []
    for _ in range(PAIRS):
        start = time.perf_counter()
        result = run_experiment(experiment)
        middle = time.perf_counter()
        with deterministic(experiment.recipe.threads):
            weights = bare_loop(experiment)
        end = time.perf_counter()
        if not all(torch.equal(weights[name], result.weights[name]) for name in weights):
            raise SystemExit("the loop and the simulation did not do the same steps")
        simulated_seconds.append(middle - start)
        loop_seconds.append(end - middle)
        ratios.append(simulated_seconds[-1] / loop_seconds[-1])
    return {
        "what": "simulated FL against a bare PyTorch loop, same steps, same final weights",
        "ratio": statistics.median(ratios),
        "at most": 1.15,
        "ratios": ratios,
        "simulated seconds": simulated_seconds,
        "loop seconds": loop_seconds,
        "threads": experiment.recipe.threads,
    }
