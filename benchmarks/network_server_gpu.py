"""How fast a deployed server trains on a GPU, against two floors that are measured beside it.

VGG-5, batches of 100. Processes replay a stored batch through the whole way in: certificates on
both sides, gRPC, decoding, admission, flow control, scheduler, compute thread, GPU. The floors: the
same steps as a recorded CUDA graph on a batch that is in GPU memory, and bytes through bare gRPC
over as many connections from as many processes (bare_stream.py). The slower one is what the server
is held against. Rounds in turn; the steps computed one by one from GPU memory are shown as well.
With several numbers of gateways each of them is measured, and the last is held against the floor.

    python -m benchmarks.network_server_gpu [--gateways 0,1,4] [--feeders 6] [--connections 2]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.bare_stream import received
from benchmarks.network_parts import server_tls
from benchmarks.network_server import (
    bare_loop,
    build,
    over_the_network,
    sides_of,
    stored_batch,
)
from benchmarks.replaying_devices import device_name
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.optimizer import build_optimizer
from fedoptima.engine.payloads import LABELS, Tensors, rebuild_activation
from fedoptima.experiments.server_setup import ServerSetup
from fedoptima.preprocess.sides import Sides
from fedoptima.runtime.security.certificates import make_device


def recorded_loop(setup: ServerSetup, sides: Sides, batch: Tensors, seconds: float) -> float:
    """Seconds a step: replays of a graph that also takes a new batch from GPU memory."""
    if setup.workload.compute.type != "cuda":
        return bare_loop(setup, sides, batch, seconds)
    assert sides.server is not None
    server = sides.server.train()
    settings = setup.workload.server_optimizer
    optimizer = build_optimizer(settings, list(server.parameters()), fused=True)
    stored = {name: tensor.to(setup.workload.compute) for name, tensor in batch.items()}
    own = {name: tensor.clone() for name, tensor in stored.items()}

    def step() -> None:
        for name, tensor in own.items():
            tensor.copy_(stored[name])
        activation = rebuild_activation(own, sides.activation)
        setup.workload.loss(server(activation), own[LABELS]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    stream = torch.cuda.Stream(setup.workload.compute)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        step()
        graph.capture_end()
        stream.synchronize()
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(50):
                graph.replay()
            stream.synchronize()
            steps += 50
        return (time.perf_counter() - start) / steps


def bare_stream(counts: list[int], nbytes: int, seconds: float) -> float:
    """Seconds a batch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = server_tls(folder)
        for number in range(sum(counts)):
            make_device(folder, device_name(number))
        return nbytes / asyncio.run(received(tls, folder, counts, seconds))


def measure(
    device: str = "cuda",
    *,
    feeders: int = 6,
    connections: int = 2,
    rounds: int = 3,
    seconds: float = 6.0,
    gateways: Sequence[int] = (0,),
) -> dict[str, object]:
    torch.set_num_threads(1)
    counts = [connections] * feeders
    setup = build(device, devices=sum(counts), seconds=seconds)
    sides = sides_of(setup)
    batch = stored_batch(setup, sides)
    nbytes = sum(tensor.nbytes for tensor in batch.values())
    servers: dict[int, list[float]] = {number: [] for number in gateways}
    streams, recorded, eager = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        for number, figures in servers.items():
            figures.append(over_the_network(setup, batch, counts, number))
        streams.append(bare_stream(counts, nbytes, seconds / 2))
        with deterministic(1):
            recorded.append(recorded_loop(setup, sides, batch, seconds / 6))
            eager.append(bare_loop(setup, sides, batch, seconds / 6))
    network = servers[gateways[-1]]
    slower = [max(pair) for pair in zip(streams, recorded, strict=True)]
    ratios = [floor / ours for ours, floor in zip(network, slower, strict=True)]

    def shown(figures: list[float]) -> list[float]:
        return [round(1e3 * seconds, 3) for seconds in figures]

    return {
        "what": f"a server on {device}, fed by {feeders} processes with {connections} TLS "
        "connections each, against the slower of two floors: batches/s",
        "ratio": statistics.median(ratios),
        "at least": 0.90,
        "ratios": ratios,
        **{f"ms a batch, server, {n} gateways": shown(own) for n, own in servers.items()},
        "ms a batch, bare gRPC stream": shown(streams),
        "ms a batch, recorded steps from GPU memory": shown(recorded),
        "ms a batch, steps one by one from GPU memory": shown(eager),
        "median ms a batch": 1e3 * statistics.median(network),
        "MB a batch": nbytes / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--feeders", type=int, default=6, help="processes")
    parser.add_argument("--connections", type=int, default=2, help="of each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gateways", default="0", help="of the server: one or more numbers")
    parser.add_argument("--seconds", type=float, default=6.0, help="of the server, a round")
    parser.add_argument("--switch-interval", type=float, help="of Python's threads, in seconds")
    asked = parser.parse_args()
    if asked.switch_interval is not None:
        sys.setswitchinterval(asked.switch_interval)
    found = measure(
        asked.device,
        feeders=asked.feeders,
        connections=asked.connections,
        rounds=asked.rounds,
        seconds=asked.seconds,
        gateways=[int(number) for number in asked.gateways.split(",")],
    )
    for key, value in found.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
