"""What the network costs a device: training with every batch sent, against a bare loop.

One device, one torch thread, VGG-5, batches of 100 CIFAR-10-sized images. The server is another
process, connected with certificates on both sides; it takes every batch and throws it away. The
loop does the same forward and auxiliary steps on the same batches and sends nothing. Times are of
pairs run in turn, so that a busy machine slows both.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from benchmarks.network_parts import device_tls, run_server, server_process, server_tls
from benchmarks.noise import images
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.effects import Send
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import AuxiliaryStep, LoadModel, ServerStep
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import ActivationBatch
from fedoptima.core.types import Payload, PayloadId
from fedoptima.data.dataset import Dataset
from fedoptima.data.loader import Loader
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.given import Given
from fedoptima.experiments.join import DeviceSetup, run_device
from fedoptima.experiments.server_setup import ServerSetup, prepare_server
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.runtime.device.state import StateFile
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.trace.reader import read_trace

BATCH, ITERATIONS, PAIRS = 100, 60, 5
NAME = "device"


def build() -> ServerSetup:
    recipe = {
        "name": "network-device",
        "threads": 1,
        "model": {"name": "vgg5"},
        "data": {"name": "noise", "augment": False},
        "training": {"batch_size": BATCH, "iterations": ITERATIONS, "evaluate_every": 1000.0},
        "split": {"at": 1},
        "stop": {"rounds": 1},
    }
    return prepare_server(validate(Recipe, recipe, "benchmark"), Given(dataset=data()))


def data() -> Dataset:
    return images(samples=1000)


def discard(self: ServerEngine, job: ServerStep, result: PayloadId) -> Outcome:
    return Outcome(Payload(result, 0), samples=BATCH)


def discarding_server(folder: Path, tls: ServerTLS, parent: Connection) -> None:
    ServerEngine._step = discard  # type: ignore[method-assign]
    run_server(build, folder, tls, parent)


def over_the_network() -> float:
    """Seconds an iteration, from the first to the last."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = server_tls(folder)
        run = folder / "run"
        with server_process(discarding_server, run, tls) as (address, _):
            run_device(
                DeviceSetup(
                    NAME,
                    address,
                    StateFile(folder / "state.json"),
                    tls=device_tls(folder, NAME),
                    given=Given(dataset=data()),
                )
            )
        ends, sent = [], 0
        for record in read_trace(run / "trace.jsonl.gz"):
            if record.node != NAME:
                continue
            if isinstance(record.event, JobDone) and isinstance(
                record.event.job, LoadModel | AuxiliaryStep
            ):
                ends.append(record.at)
            sent += sum(
                isinstance(e, Send) and isinstance(e.message, ActivationBatch)
                for e in record.effects
            )
    if sent < ITERATIONS - 1:  # the last one may come after the round
        raise SystemExit(f"only {sent} of {ITERATIONS} batches were sent")
    return (ends[-1] - ends[0]) / ITERATIONS


def bare_loop(setup: ServerSetup) -> float:
    workload = setup.workload
    plan = workload.plan([DeviceSpeed(1e9, 1e7)])
    sides = workload.sides(plan)
    assert sides.auxiliary is not None
    modules = {"": sides.device, "aux.": sides.auxiliary}
    parameters = [p for module in modules.values() for p in module.parameters()]
    optimizer = workload.device_optimizer.build(parameters)
    loader = Loader(
        workload.dataset, torch.arange(1000), batch_size=BATCH, seed=1, node=NAME, augment=False
    )
    for module in modules.values():
        module.train()
    start = time.perf_counter()
    for step in range(ITERATIONS):
        inputs, labels = loader.batch(step)
        optimizer.zero_grad()
        cross_entropy(sides.auxiliary(sides.device(inputs)), labels).backward()
        optimizer.step()
    return (time.perf_counter() - start) / ITERATIONS


def measure() -> dict[str, object]:
    torch.set_num_threads(1)
    setup = build()
    network, bare = [], []
    for _ in range(PAIRS):
        network.append(over_the_network())
        with deterministic(1):
            bare.append(bare_loop(setup))
    ratios = [loop / net for net, loop in zip(network, bare, strict=True)]
    return {
        "what": "samples/s of a device that sends every batch over TLS, against a bare loop",
        "ratio": statistics.median(ratios),
        "at least": 0.93,
        "ratios": ratios,
        "ms a batch, network": [1e3 * seconds for seconds in network],
        "ms a batch, loop": [1e3 * seconds for seconds in bare],
        "samples/s, network": BATCH / statistics.median(network),
    }


if __name__ == "__main__":
    print(measure())
