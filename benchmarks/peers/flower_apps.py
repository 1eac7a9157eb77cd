"""The client and the server of Flower's simulation; see `flower`.

They are in a module of their own because Ray's workers import them by name.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.nn.functional import cross_entropy

from benchmarks.sides import Asked
from benchmarks.two_process_loop import evaluate
from benchmarks.workloads import LEARNING_RATE, MOMENTUM, recipe, warm_up
from fedoptima.data.loader import Loader
from fedoptima.experiments.device_engines import device_loader
from fedoptima.experiments.setup import Experiment, prepare


@cache
def setup(data: str, asked: Asked) -> tuple[Experiment, list[Loader]]:
    torch.set_num_threads(1)
    warm_up()
    experiment = prepare(recipe(asked.workload, Path(data)))
    loaders = [
        device_loader(experiment.recipe, experiment.workload, name, rows)
        for name, rows in experiment.shares.items()
    ]
    return experiment, loaders


def client_app(asked: Asked) -> ClientApp:
    app = ClientApp()

    @app.query()
    def load(message: Message, context: Context) -> Message:
        setup(asked.data, asked)
        return Message(content=RecordDict({}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        experiment, loaders = setup(asked.data, asked)
        loader, steps = loaders[int(context.node_config["partition-id"])], asked.workload.steps
        number = int(message.content["config"]["server-round"]) - 1
        model = experiment.workload.model.train()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)
        for step in range(number * steps, (number + 1) * steps):
            inputs, labels = loader.batch(step)
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        reply = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": asked.workload.samples}),
        }
        return Message(content=RecordDict(reply), reply_to=message)

    return app


def server_app(asked: Asked) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        experiment, _ = setup(asked.data, asked)
        clients = asked.workload.clients
        while len(nodes := list(grid.get_node_ids())) < clients:
            time.sleep(0.1)
        # Several for each Ray worker, so that none is left out.
        asks = [Message(RecordDict({}), node, "query") for node in nodes[: 8 * asked.workers]]
        list(grid.send_and_receive(asks))
        strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        initial = ArrayRecord(experiment.workload.model.state_dict())
        start = time.perf_counter()
        result = strategy.start(grid, initial, num_rounds=asked.workload.rounds)
        weights = result.arrays.to_torch_state_dict()
        evaluate(experiment, weights)
        asked.reply(time.perf_counter() - start, weights)

    return app
