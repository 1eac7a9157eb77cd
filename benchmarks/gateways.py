"""How many batches a second a server takes in with one gateway and with four.

The way in alone is measured: the server's side of the model is one small layer on a corner of the
activations, so that training is nearly free. Processes replay a stored batch of 3.3 MB over TLS:
decryption, decoding and admission in the gateways, flow control, scheduler and training in the
server. Numbers of gateways in turn; the ratio of the last to the first is what is asked for.

    python -m benchmarks.gateways [--gateways 1,4] [--feeders 8] [--connections 16]

It needs more cores than one server with all its gateways and feeders can use: 16.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.network_server import over_the_network, sides_of, stored_batch
from benchmarks.noise import images
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.experiments.given import Given
from fedoptima.experiments.server_setup import ServerSetup, prepare_server

BATCH, CHANNELS, SIZE = 100, 32, 32


class Corner(nn.Linear):
    """The least that a server's side can do with activations."""

    def forward(self, activations: Tensor) -> Tensor:
        return super().forward(activations[:, :, 0, 0])


def build(devices: int, seconds: float) -> ServerSetup:
    model = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, stride=2, padding=1), Corner(CHANNELS, 10))
    recipe = {
        "name": "gateways",
        "threads": 1,
        "model": {"name": "custom"},
        "data": {"name": "noise", "augment": False},
        "method": {"name": "fedoptima", "activation_cap": 64},
        "training": {"batch_size": BATCH, "evaluate_every": 1000.0},
        "split": {"at": 1},
        "deploy": {"devices": devices, "checkpoint_seconds": 1000.0},
        "stop": {"hours": seconds / 3600},
    }
    given = Given(model=model, dataset=images(samples=1000, size=SIZE))
    return prepare_server(validate(Recipe, recipe, "benchmark"), given)


def own_cpu() -> float:
    """Seconds of this process, in which the server is; gateways and feeders have their own."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(
    gateways: Sequence[int] = (1, 4),
    *,
    feeders: int = 8,
    connections: int = 16,
    rounds: int = 3,
    seconds: float = 8.0,
) -> dict[str, object]:
    torch.set_num_threads(1)
    counts = [connections] * feeders
    setup = build(sum(counts), seconds)
    batch = stored_batch(setup, sides_of(setup))
    rates: dict[int, list[float]] = {number: [] for number in gateways}
    loads: dict[int, list[float]] = {number: [] for number in gateways}
    for turn in range(rounds):
        for number in gateways[:: -1 if turn % 2 else 1]:
            before = own_cpu()
            rate = 1 / over_the_network(setup, batch, counts, number)
            rates[number].append(rate)
            loads[number].append((own_cpu() - before) / seconds)
            print(f"{number} gateways: {rate:.0f} batches/s", flush=True)
    fewest, most = gateways[0], gateways[-1]
    ratios = [many / one for one, many in zip(rates[fewest], rates[most], strict=True)]
    nbytes = sum(tensor.nbytes for tensor in batch.values())
    return {
        "what": f"batches/s that a server takes in with {most} gateways, against {fewest}; "
        f"{sum(counts)} TLS connections from {feeders} processes",
        "ratio": statistics.median(ratios),
        "at least": 2.5,
        "ratios": ratios,
        **{f"batches/s, {n} gateways": [round(rate) for rate in own] for n, own in rates.items()},
        **{
            f"server's own cores in use, {n} gateways": [round(load, 2) for load in own]
            for n, own in loads.items()
        },
        "MB a batch": nbytes / 1e6,
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateways", default="1,4", help="numbers of them, in turn")
    parser.add_argument("--feeders", type=int, default=8, help="processes")
    parser.add_argument("--connections", type=int, default=16, help="of each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of the server, a round")
    asked = parser.parse_args()
    found = measure(
        [int(number) for number in asked.gateways.split(",")],
        feeders=asked.feeders,
        connections=asked.connections,
        rounds=asked.rounds,
        seconds=asked.seconds,
    )
    for key, value in found.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
