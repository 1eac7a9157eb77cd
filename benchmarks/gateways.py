"""How many batches a second a server takes in with one gateway and with four.

The way in alone is measured: the server's side of the model is one small layer on a corner of the
activations, so that training is nearly free. Processes replay a stored batch of 3.3 MB over TLS:
decryption, decoding and admission in the gateways, flow control, scheduler and training in the
server. Numbers of gateways in turn; the ratio of the last to the first is what is asked for.

    python -m benchmarks.gateways [--gateways 1,4] [--feeders 8] [--connections 16]

It needs more cores than one server with all its gateways and feeders can use: 16. On fewer, the CPU
time of a batch says what a gateway takes off the server: n gateways bring at most n times as many
batches as one, until the server's own process is busy all of its time.

    python -m benchmarks.gateways --gateways 1 --feeders 2 --connections 16
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from benchmarks.network_server import over_the_network, sides_of, stored_batch
from benchmarks.noise import images
from benchmarks.process_costs import cpu_seconds
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


class Cores:
    """How many cores the server's process, which is this one, and its gateways keep busy, once
    batches come in: read twice a second, over the second half of the time."""

    def __enter__(self) -> Self:
        self._readings: list[tuple[float, float, float]] = []  # when, of the server, of gateways
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._ended.wait(0.5):
            with suppress(OSError):  # a gateway has ended
                gateways = sum(map(cpu_seconds, _gateways()))
                self._readings.append((time.monotonic(), cpu_seconds(os.getpid()), gateways))

    def busy(self) -> tuple[float, float]:
        with_gateways = [reading for reading in self._readings if reading[2]]
        half = with_gateways[len(with_gateways) // 2 :]
        (began, *before), (ended, *after) = half[0], half[-1]
        server, gateways = (
            (last - first) / (ended - began) for first, last in zip(before, after, strict=True)
        )
        return server, gateways


def _gateways() -> list[int]:
    """Children of this process that are gateways."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"fedoptima.runtime.gateway.front" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


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
    costs: dict[int, list[tuple[float, float]]] = {number: [] for number in gateways}
    for turn in range(rounds):
        for number in gateways[:: -1 if turn % 2 else 1]:
            with Cores() as cores:
                rate = 1 / over_the_network(setup, batch, counts, number)
            rates[number].append(rate)
            server, fronts = (1e3 * busy / rate for busy in cores.busy())
            costs[number].append((round(server, 2), round(fronts, 2)))
            print(
                f"{number} gateways: {rate:.0f} batches/s, "
                f"{server:.2f} + {fronts:.2f} ms of CPU each",
                flush=True,
            )
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
            f"ms of CPU a batch, server's process and {n} gateways": own for n, own in costs.items()
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
