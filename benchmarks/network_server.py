"""What the network costs a server: activations off the wire, against the same steps from memory.

VGG-5, batches of 100, one torch thread. Another process replays a stored batch through the whole
way in: certificates on both sides, gRPC, decoding, admission, flow control, scheduler, compute
thread. The loop does the same server steps on the same activations in memory. Pairs in turn.

python -m benchmarks.network_server     (on a GPU: benchmarks/network_server_gpu.py)
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from benchmarks.network_parts import server_tls
from benchmarks.noise import images
from benchmarks.replaying_devices import device_name
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import ServerStep
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.optimizer import build_optimizer
from fedoptima.engine.payloads import LABELS, Tensors, name_activation, rebuild_activation
from fedoptima.experiments.given import Given
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_run import RunHooks, serve_run
from fedoptima.experiments.server_setup import ServerSetup, prepare_server
from fedoptima.preprocess.sides import Sides
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.certificates import make_device
from fedoptima.trace.reader import read_trace

BATCH, SECONDS, PAIRS, DEVICES = 100, 8.0, 5, 2


def build(device: str = "cpu", *, devices: int = DEVICES, seconds: float = SECONDS) -> ServerSetup:
    recipe = {
        "name": "network-server",
        "device": device,
        "threads": 1,
        "model": {"name": "vgg5"},
        "data": {"name": "noise", "augment": False},
        "training": {"batch_size": BATCH, "evaluate_every": 1000.0},
        "split": {"at": 1},
        "deploy": {"devices": devices, "checkpoint_seconds": 1000.0},
        "stop": {"hours": seconds / 3600},
    }
    return prepare_server(
        validate(Recipe, recipe, "benchmark"), Given(dataset=images(samples=1000))
    )


def sides_of(setup: ServerSetup) -> Sides:
    return setup.workload.sides(setup.workload.plan([DeviceSpeed(1e9, 1e7)] * DEVICES))


def stored_batch(setup: ServerSetup, sides: Sides) -> Tensors:
    data = setup.workload.dataset
    with torch.no_grad():
        output = sides.device(data.prepare(data.train.inputs[:BATCH]))
    tensors = {**name_activation(output), LABELS: data.train.labels[:BATCH]}
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}


def replaying(
    folder: Path, batch: Path, counts: Sequence[int]
) -> Callable[[Address], Coroutine[None, None, None]]:
    """Processes with so many devices each, beside a server."""

    async def background(address: Address) -> None:
        first, processes = 0, []
        for count in counts:
            arguments = [str(address), str(folder), str(batch), str(count), str(first)]
            processes.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.replaying_devices", *arguments
                )
            )
            first += count
        try:
            await asyncio.gather(*(process.wait() for process in processes))
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
            await asyncio.gather(*(process.wait() for process in processes))

    return background


def over_the_network(
    setup: ServerSetup, batch: Tensors, counts: Sequence[int] = (DEVICES,), gateways: int = 0
) -> float:
    """Seconds a step. ``counts``: of devices, for each process that feeds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = server_tls(folder)
        for number in range(sum(counts)):
            make_device(folder, device_name(number))
        save_file(batch, folder / "batch.safetensors")
        directory = RunDirectory.create(folder / "run", setup.describe())
        background = replaying(folder, folder / "batch.safetensors", counts)
        hooks = RunHooks(background=background)
        serve_run(setup, directory, tls=tls, hooks=hooks, gateways=gateways)
        ends = [
            record.at
            for record in read_trace(directory.trace)
            if isinstance(record.event, JobDone) and isinstance(record.event.job, ServerStep)
        ]
    ends = ends[len(ends) // 4 :]  # first steps prepare libraries, and record themselves on a GPU
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def bare_loop(setup: ServerSetup, sides: Sides, batch: Tensors, seconds: float = SECONDS) -> float:
    assert sides.server is not None
    server = sides.server.train()
    settings, fused = setup.workload.server_optimizer, setup.workload.compute.type == "cuda"
    optimizer = build_optimizer(settings, list(server.parameters()), fused=fused)
    batch = {name: tensor.to(setup.workload.compute) for name, tensor in batch.items()}
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        activation = rebuild_activation(batch, sides.activation)
        optimizer.zero_grad()
        cross_entropy(server(activation), batch[LABELS]).backward()
        optimizer.step()
        steps += 1
        if steps % 100 == 0 and setup.workload.compute.type == "cuda":
            torch.cuda.synchronize()
    if setup.workload.compute.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def measure() -> dict[str, object]:
    torch.set_num_threads(1)
    setup = build()
    sides = sides_of(setup)
    batch = stored_batch(setup, sides)
    network, bare = [], []
    for _ in range(PAIRS):
        network.append(over_the_network(setup, batch))
        with deterministic(1):
            bare.append(bare_loop(setup, sides, batch))
    ratios = [loop / net for net, loop in zip(network, bare, strict=True)]
    return {
        "what": "activation batches/s of a server fed over TLS, against the same steps from memory",
        "ratio": statistics.median(ratios),
        "at least": 0.90,
        "ratios": ratios,
        "ms a batch, network": [1e3 * seconds for seconds in network],
        "ms a batch, loop": [1e3 * seconds for seconds in bare],
        "batches/s, network": 1 / statistics.median(network),
        "MB a batch": sum(tensor.nbytes for tensor in batch.values()) / 1e6,
    }


if __name__ == "__main__":
    print(measure())
