"""The floor: FL as a bare PyTorch loop, the clients split over processes of one thread each.

What a careful person would write by hand for two cores: every process has one model and one
optimiser and trains its clients in turn, with their momentum; it adds their weights up in memory
that it shares with the first process, which makes the average and, at the end, evaluates. No
clock, no messages, no trace. Time is taken as on our side (`simulated`): from loaded data to the
evaluated model, and the processes that train are started and ended within it.

python -m benchmarks.two_process_loop ASKED     (from benchmarks.sides)
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from copy import deepcopy
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.sides import Asked, processor_seconds
from benchmarks.workloads import LEARNING_RATE, MOMENTUM, Workload, recipe, warm_up
from fedoptima.data.loader import Loader
from fedoptima.experiments.device_engines import device_loader
from fedoptima.experiments.setup import Experiment, prepare

State = dict[str, Tensor]

EVALUATED = 100  # images at a time; more take more memory and are no faster


def train(
    workload: Workload,
    experiment: Experiment,
    loaders: Sequence[Loader],
    weights: State,
    total: State,
    turn: Barrier,
) -> None:
    """One process: its clients in every round, their weighted sum in ``total``."""
    torch.set_num_threads(1)
    model = deepcopy(experiment.workload.model).train()
    own = dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)
    # Of all clients at once: one by one they would lie between what a step allocates and frees. It
    # is part of the work, as it is of the simulator's: there is none before the first step.
    places = len(loaders) if workload.keeps_momentum else 1
    momentum = {p: torch.zeros(places, *p.shape) for p in model.parameters()}
    for number in range(workload.rounds):
        for place, loader in enumerate(loaders):
            for name, tensor in own.items():
                tensor.copy_(weights[name])
            for parameter, all_of_them in momentum.items():
                own_momentum = all_of_them[place if workload.keeps_momentum else 0]
                if not workload.keeps_momentum:
                    own_momentum.zero_()
                optimizer.state[parameter]["momentum_buffer"] = own_momentum
            for step in range(number * workload.steps, (number + 1) * workload.steps):
                inputs, labels = loader.batch(step)
                optimizer.zero_grad()
                cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            for name, tensor in own.items():
                if place == 0:
                    total[name].zero_()
                if tensor.is_floating_point():
                    total[name].add_(tensor, alpha=1 / workload.clients)
                else:
                    torch.maximum(total[name], tensor, out=total[name])
        turn.wait()  # the sums are there
        turn.wait()  # the average is there


def evaluate(experiment: Experiment, weights: State) -> None:
    model, data = deepcopy(experiment.workload.model).eval(), experiment.workload.dataset
    model.load_state_dict(weights)
    with torch.inference_mode():
        for part in data.test.inputs.split(EVALUATED):
            model(data.prepare(part))


def main() -> None:
    torch.set_num_threads(1)
    warm_up()
    asked = Asked.read()
    workload = asked.workload
    experiment = prepare(recipe(workload, Path(asked.data)))
    loaders = [
        device_loader(experiment.recipe, experiment.workload, name, rows)
        for name, rows in experiment.shares.items()
    ]
    weights = {
        n: t.clone().share_memory_() for n, t in experiment.workload.model.state_dict().items()
    }
    totals = [
        {name: torch.zeros_like(tensor).share_memory_() for name, tensor in weights.items()}
        for _ in range(asked.workers)
    ]
    # A forked process shares the data and torch itself with this one.
    processes = multiprocessing.get_context("fork")
    turn = processes.Barrier(asked.workers + 1)
    start, began = time.perf_counter(), processor_seconds()
    started = []
    for number, total in enumerate(totals):
        mine = loaders[number :: asked.workers]
        arguments = (workload, experiment, mine, weights, total, turn)
        started.append(processes.Process(target=train, args=arguments, daemon=True))
        started[-1].start()
    for _ in range(workload.rounds):
        turn.wait()
        for name, tensor in weights.items():
            parts = [total[name] for total in totals]
            counted = not tensor.is_floating_point()
            tensor.copy_(torch.stack(parts).amax(0) if counted else torch.stack(parts).sum(0))
        turn.wait()
    evaluate(experiment, weights)
    for process in started:
        process.join()
    seconds = time.perf_counter() - start
    asked.reply(seconds, weights, processor=processor_seconds() - began)


if __name__ == "__main__":
    main()
