"""What both processes of pfl-research do; see `pfl_research`.

Every client takes part in every round and none is evaluated, which pfl would do in the first
round by default. The clock runs from the moment when both processes have their data to the
evaluated model. pfl averages parameters only: batch-norm statistics stay as the last client left
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.sides import Asked
from benchmarks.two_process_loop import evaluate
from benchmarks.workloads import LEARNING_RATE, MOMENTUM, recipe, warm_up
from fedoptima.data.loader import Loader
from fedoptima.experiments.device_engines import device_loader
from fedoptima.experiments.setup import prepare


class Averaging(FederatedAveraging):
    """Knows the round, and evaluates no client."""

    round = 0

    def get_next_central_contexts(self, model: Any, iteration: int, *rest: Any) -> Any:
        self.round = iteration
        contexts, *others = super().get_next_central_contexts(model, iteration, *rest)
        if contexts is not None:
            contexts = tuple(replace(context, do_evaluation=False) for context in contexts)
        return (contexts, *others)


class Batches(Dataset):
    """A client's batches of one round, from the loader that every side uses."""

    def __init__(self, loader: Loader, first: int, steps: int, user: str) -> None:
        super().__init__([], user_id=user)
        self._loader, self._first, self._steps = loader, first, steps

    def __len__(self) -> int:
        return self._loader.samples

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(self._first, self._first + self._steps):
            yield self._loader.batch(step)


class Network(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.model.train()
        return cross_entropy(self.model(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, object]:
        raise NotImplementedError("no client is evaluated")


def train() -> None:
    torch.set_num_threads(1)
    warm_up()
    np.random.seed(1)  # both processes must draw the same clients
    asked = Asked.read()
    workload = asked.workload
    experiment = prepare(recipe(workload, Path(asked.data)))
    algorithm, steps = Averaging(), workload.steps
    loaders = {
        name: device_loader(experiment.recipe, experiment.workload, name, rows)
        for name, rows in experiment.shares.items()
    }

    def client(name: str) -> Batches:
        return Batches(loaders[name], algorithm.round * steps, steps, name)

    clients = FederatedDataset(client, get_user_sampler("minimize_reuse", list(loaders)))
    network = Network(experiment.workload.model)
    model = PyTorchModel(
        network,
        lambda parameters, lr: torch.optim.SGD(parameters, lr, MOMENTUM),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    backend = SimulatedBackend(clients, clients)
    torch.distributed.barrier()
    start = time.perf_counter()
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=workload.rounds,
            evaluation_frequency=workload.rounds,
            train_cohort_size=workload.clients,
            val_cohort_size=None,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_batch_size=workload.batch, local_num_epochs=1, local_learning_rate=LEARNING_RATE
        ),
    )
    if pytorch_ops.distributed.global_rank == 0:
        evaluate(experiment, experiment.workload.model.state_dict())
        parameters = dict(experiment.workload.model.named_parameters())
        asked.reply(time.perf_counter() - start, parameters)
