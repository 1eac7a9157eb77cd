"""What many connected devices cost a server: CPU of an idle device, CPU of a batch, memory.

A tiny model, certificates, the product's own protocol; the devices share a few processes and
compute nothing (replaying_devices.py). First all of them are connected and idle, then they send
batches at a set rate. CPU is what the system has counted for the server's process (and for its
gateways), so it does not matter what else the machine does. The event loop's longest gap is how
late it came to something that was due every 50 ms. ``--bare`` measures the floor (bare_server.py).

    python -m benchmarks.many_devices [--devices 1000] [--seconds 600] [--rate 50] [--bare stream]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.bare_server import BareServer, listen, training_step
from benchmarks.network_memory import BATCH, FEATURES, build
from benchmarks.network_parts import server_process, server_tls
from benchmarks.process_costs import cpu_by_thread, cpu_seconds, growth, open_files, resident_mib
from benchmarks.replaying_devices import device_name
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import ServerStep
from fedoptima.engine.payloads import LABELS
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_run import RunHooks, ServerWatch, serve_run
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.certificates import make_device
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.trace.record import Record

_TICK = 0.05  # seconds


@dataclass
class Seen:
    """By the server of itself."""

    joined: int = 0
    batches: int = 0
    longest_gap: float = 0.0  # seconds, since it was last asked

    def observe(self, record: Record) -> None:
        event = record.event
        self.batches += isinstance(event, JobDone) and isinstance(event.job, ServerStep)

    async def keep_time(self, _: Address) -> None:
        due = time.monotonic() + _TICK
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            self.longest_gap = max(self.longest_gap, now - due)
            due = now + _TICK


def server(
    devices: int, features: int, folder: Path, tls: ServerTLS, gateways: int, parent: Connection
) -> None:
    """In a process of its own: answers what it is asked through the pipe."""
    torch.set_num_threads(1)
    setup = build(devices, features, patience=600.0)
    directory = RunDirectory.create(folder, setup.describe())
    seen, ends = Seen(), False

    def look(watch: ServerWatch) -> None:
        nonlocal ends
        if seen.observe not in watch.node.observers:
            watch.node.observers.append(seen.observe)
        while parent.poll():
            ends = parent.recv() == "end"
            if not ends:
                seen.joined = len(watch.node.machine.members)
                parent.send(seen)
                seen.longest_gap = 0.0

    def ready(address: Address) -> None:
        parent.send(address)
        parent.send(os.getpid())

    hooks = RunHooks(ready=ready, observe=look, interrupted=lambda: ends, background=seen.keep_time)
    with suppress(Interrupted):
        serve_run(setup, directory, tls=tls, hooks=hooks, gateways=gateways)


def bare_server(train: bool, features: int, tls: ServerTLS, parent: Connection) -> None:
    """The same, of a server that does nothing but answer, and train if it is to."""
    torch.set_num_threads(1)
    seen = Seen()
    bare = BareServer(training_step(features) if train else lambda: None)

    def answer() -> bool:
        while parent.poll():
            if parent.recv() == "end":
                return False
            seen.joined, seen.batches = bare.joined, bare.batches
            parent.send(seen)
            seen.longest_gap = 0.0
        return True

    async def serve() -> None:
        ticking = asyncio.create_task(seen.keep_time(Address("", 0)))
        await listen(bare, tls, parent, answer)
        ticking.cancel()

    asyncio.run(serve())


@dataclass(frozen=True)
class Reading:
    at: float
    cpu: float
    by_thread: dict[str, float]
    mib: float
    files: int
    seen: Seen


class Watched:
    """The server's process and its gateways, seen from outside."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self._pid = pid
        self._pipe = pipe
        self._pids = [pid, *_children(pid)]

    def read(self) -> Reading:
        self._pipe.send("look")
        seen = self._pipe.recv()
        threads: dict[str, float] = {}
        for pid in self._pids:
            for name, seconds in cpu_by_thread(pid).items():
                threads[name] = threads.get(name, 0.0) + seconds
        return Reading(
            time.monotonic(),
            sum(map(cpu_seconds, self._pids)),
            threads,
            sum(map(resident_mib, self._pids)),
            sum(map(open_files, self._pids)),
            seen,
        )


def _children(pid: int) -> list[int]:
    found = list[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def certificates(folder: Path, devices: int) -> ServerTLS:
    tls = server_tls(folder)
    for number in range(devices):
        make_device(folder, device_name(number))
    return tls


def measure(
    devices: int = 1000,
    *,
    seconds: float = 600.0,
    idle: float = 60.0,
    warm_up: float = 60.0,
    rate: float = 50.0,
    processes: int = 2,
    gateways: int = 0,
    features: int = FEATURES,
    every: float = 10.0,
    bare: str = "",
) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = certificates(folder, devices)
        batch = folder / "batch.safetensors"
        activation = torch.randn(BATCH, features)
        save_file({"activations.0": activation, LABELS: torch.arange(BATCH)}, batch)
        asked: tuple[object, ...] = (server, devices, features, folder / "run", tls, gateways)
        if bare:
            asked = bare_server, bare == "training", features, tls
        with server_process(*asked) as (address, pipe):
            watched = Watched(pipe.recv(), pipe)
            empty = watched.read()
            fleets = _fleets(address, folder, batch, devices, processes, rate)
            try:
                _until_joined(watched, devices)
                time.sleep(min(20.0, idle))  # the models go out
                resting = _readings(watched, idle, every)
                for fleet in fleets:
                    fleet.send_signal(signal.SIGUSR1)
                _readings(watched, warm_up, every)
                working = _readings(watched, seconds, every)
            finally:
                for fleet in fleets:
                    fleet.kill()
                    fleet.wait()
                pipe.send("end")
    return _figures(devices, empty, resting, working)


def _fleets(
    address: Address, folder: Path, batch: Path, devices: int, processes: int, rate: float
) -> list[subprocess.Popen[bytes]]:
    share = -(-devices // processes)
    found = []
    for first in range(0, devices, share):
        count = min(share, devices - first)
        arguments = [str(address), str(folder), str(batch), str(count), str(first)]
        command = [sys.executable, "-m", "benchmarks.replaying_devices", *arguments]
        found.append(subprocess.Popen([*command, str(rate / processes)]))
    return found


def _until_joined(watched: Watched, devices: int) -> None:
    while (joined := watched.read().seen.joined) < devices:
        print(f"{joined} of {devices} have joined", file=sys.stderr, flush=True)
        time.sleep(2.0)


def _readings(watched: Watched, seconds: float, every: float) -> list[Reading]:
    found = [watched.read()]
    while found[-1].at - found[0].at < seconds:
        time.sleep(every)
        found.append(watched.read())
        last = found[-1]
        print(
            f"{last.at - found[0].at:.0f} s: {last.mib:.1f} MiB, {last.seen.batches} batches, "
            f"{last.seen.joined} devices, gap {last.seen.longest_gap:.3f} s",
            file=sys.stderr,
            flush=True,
        )
    return found


def _figures(
    devices: int, empty: Reading, resting: list[Reading], working: list[Reading]
) -> dict[str, object]:
    rest = (resting[-1].cpu - resting[0].cpu) / (resting[-1].at - resting[0].at)
    seconds = working[-1].at - working[0].at
    batches = working[-1].seen.batches - working[0].seen.batches
    cpu = working[-1].cpu - working[0].cpu
    threads = {
        name: round(1e3 * (used - working[0].by_thread.get(name, 0.0)) / max(batches, 1), 3)
        for name, used in working[-1].by_thread.items()
    }
    gaps = [reading.seen.longest_gap for reading in resting[1:] + working[1:]]
    return {
        "what": f"{devices} devices connected, batches at {batches / seconds:.1f} a second",
        "CPU of an idle device, ms a second": 1e3 * rest / devices,
        "CPU of a batch, ms": 1e3 * (cpu - rest * seconds) / max(batches, 1),
        "CPU of a batch with the devices' rest, ms": 1e3 * cpu / max(batches, 1),
        "of which by thread, ms": {name: ms for name, ms in threads.items() if ms > 0.01},
        "MiB, growth a minute": growth([(reading.at, reading.mib) for reading in working]),
        "MiB": [round(reading.mib, 1) for reading in (empty, resting[-1], *working)],
        "KiB of a device": 1024 * (resting[-1].mib - empty.mib) / devices,
        "event loop's longest gaps, s": sorted((round(g, 3) for g in gaps), reverse=True)[:10],
        "open files": [working[0].files, working[-1].files],
        "devices at the end": working[-1].seen.joined,
        "seconds": round(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600.0, help="that are measured")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds before, without batches")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds with batches")
    parser.add_argument("--rate", type=float, default=50.0, help="batches a second")
    parser.add_argument("--processes", type=int, default=2, help="that the devices share")
    parser.add_argument("--gateways", type=int, default=0)
    parser.add_argument("--features", type=int, default=FEATURES, help="40 bytes of a batch each")
    bare = ["stream", "training"]
    parser.add_argument("--bare", choices=bare, default="", help="the floor, without the product")
    parser.add_argument("--out", type=Path, help="a file for the figures")
    asked = parser.parse_args()
    found = measure(
        asked.devices,
        seconds=asked.seconds,
        idle=asked.idle,
        warm_up=asked.warm_up,
        rate=asked.rate,
        processes=asked.processes,
        gateways=asked.gateways,
        features=asked.features,
        bare=asked.bare,
    )
    for key, value in found.items():
        print(f"{key}: {value}")
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
