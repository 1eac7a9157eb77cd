"""Resident memory of a server by the number of connected devices, the activation cap fixed.

A tiny model; every device has a certificate of its own and sends whenever it has a credit; many of
them share a process (replaying_devices.py). Each size is a server of its own. It is measured while
activations flow and all devices have joined: the highest of the readings counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from benchmarks.network_parts import run_server, server_process, server_tls
from benchmarks.noise import images
from benchmarks.replaying_devices import device_name
from fedoptima.analysis.accounts import summarise
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.engine.payloads import LABELS
from fedoptima.experiments.given import Given
from fedoptima.experiments.server_setup import ServerSetup, prepare_server
from fedoptima.runtime.security.certificates import make_device
from fedoptima.runtime.security.tls import ServerTLS

SIZES, CAP, BATCH, FEATURES = (8, 64, 256), 32, 10, 64
READINGS, PAUSE = 10, 1.0  # seconds between two readings


def tiny_model(features: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, features), nn.ReLU(), nn.Linear(features, 10))


def build(devices: int, features: int = FEATURES, *, patience: float = 300.0) -> ServerSetup:
    """``features``: numbers of a sample's activations."""
    recipe = {
        "name": "many-devices",
        "threads": 1,
        "model": {"name": "custom"},
        "data": {"name": "noise", "augment": False},
        "method": {"name": "fedoptima", "activation_cap": CAP},
        "training": {"batch_size": BATCH, "evaluate_every": 1000.0},
        "split": {"at": 1},
        "deploy": {"devices": devices, "patience": patience},
        "stop": {"hours": 10.0},
    }
    given = Given(model=tiny_model(features), dataset=images(samples=100, size=8))
    return prepare_server(validate(Recipe, recipe, "benchmark"), given)


def server(devices: int, folder: Path, tls: ServerTLS, parent: Connection) -> None:
    run_server(partial(build, devices), folder, tls, parent)


def resident(devices: int) -> tuple[float, float]:
    """(bytes of the server's process, most batches buffered at once)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = server_tls(folder)
        for number in range(devices):
            make_device(folder, device_name(number))
        activation = torch.randn(BATCH, FEATURES)
        batch = folder / "batch.safetensors"
        save_file({"activations.0": activation, LABELS: torch.arange(BATCH)}, batch)
        with server_process(server, devices, folder / "run", tls) as (address, pipe):
            arguments = [str(address), str(folder), str(batch), str(devices), "0"]
            fleet = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.replaying_devices", *arguments]
            )
            try:
                readings = _readings(pipe, devices)
            finally:
                fleet.kill()
                fleet.wait()
                pipe.send("end")
        queue = summarise(folder / "run" / "trace.jsonl.gz").memory.queue.peak
    return max(readings), queue


def _readings(pipe: Connection, devices: int) -> list[int]:
    readings: list[int] = []
    while len(readings) < READINGS:
        pipe.send("look")
        nbytes, joined = pipe.recv()
        if joined == devices:
            readings.append(nbytes)
        time.sleep(PAUSE)
    return readings


def measure() -> dict[str, object]:
    figures = {devices: resident(devices) for devices in SIZES}
    fewest, most = SIZES[0], SIZES[-1]
    further = (figures[most][0] - figures[fewest][0]) / (most - fewest)
    return {
        "what": f"KiB of a server's memory for each further device, {fewest} to {most} connected",
        "ratio": further / 1024,
        "at most": 512.0,
        "MiB": {devices: nbytes / 2**20 for devices, (nbytes, _) in figures.items()},
        "most batches buffered": {devices: int(queue) for devices, (_, queue) in figures.items()},
        "activation cap": CAP,
    }


if __name__ == "__main__":
    print(measure())
