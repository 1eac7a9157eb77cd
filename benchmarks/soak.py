"""A long run with faults all the time: does the server keep its memory, its handles, its threads?

A server and devices as real processes with the real commands, over TLS and through a relay. By a
seeded script devices are killed and started again, stopped for a while, and lose their connections.
After a sixth of the time (warm-up) the server's memory, open files and threads are followed; at the
end the run must be over in the ordinary way, and `replay` must find no difference.

    python -m benchmarks.soak [--minutes 60] [--seed 1] [--devices 6] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import torch

from benchmarks.process_costs import cpu_seconds, growth, open_files, resident_mib, threads
from fedoptima.runtime.security.certificates import (
    authority_files,
    device_files,
    make_authority,
    make_device,
)
from fedoptima.verification.replay import replay

ROOT = Path(__file__).parent.parent
EVERY = 10.0  # seconds between two readings
# At the memory, for a reading. The server gives back every ten seconds what is free, up to ten MiB:
# single looks drift from just after that to just before, which looks like growth.
LOOKS = 20
MOST_GROWTH = 0.2  # MiB a minute
SPEEDS = (0.2, 0.4, 0.8)  # GFLOP/s: devices that leave most of the machine alone
RECIPE = """
name = "soak"
threads = 1
model.name = "vgg5"
data = {{ name = "digits", partition = {{ kind = "iid" }} }}
method.name = "fedoptima"
training = {{ batch_size = 20, evaluate_every = 5.0 }}
deploy = {{ devices = {devices}, checkpoint_seconds = 30 }}
stop.hours = {hours}
fleet.server.gflops = 3.0
"""
DEVICE = """
[[fleet.devices]]
name = "{name}"
gflops = {speed}
"""
MEAN_PAUSE = 4.0  # seconds between two faults
FAULTS = {"cut": 8, "stop": 2, "kill": 1, "end": 1}  # how often each


class Relay:
    """Between the devices and the server; connections can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()

    async def listen(self) -> int:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._listening.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        pair = writer, up_writer
        self._pairs.add(pair)
        await asyncio.gather(self._pass(reader, up_writer), self._pass(up_reader, writer))
        self._pairs.discard(pair)

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self, chance: random.Random) -> None:
        for writer in chance.choice(sorted(self._pairs, key=id)) if self._pairs else ():
            writer.transport.abort()


@dataclass(frozen=True)
class Reading:
    seconds: float
    mib: float
    files: int
    threads: int


class Soak:
    def __init__(self, folder: Path, *, devices: int, minutes: float, seed: int) -> None:
        self._folder = folder
        self._names = [f"device-{number}" for number in range(devices)]
        self._minutes = minutes
        self._chance = random.Random(seed)
        self._devices: dict[str, subprocess.Popen[bytes]] = {}
        self._away = set[str]()
        self._tasks: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()
        self.readings: list[Reading] = []
        self.status: int | None = None
        self.cpu = 0.0

    @property
    def run_folder(self) -> Path:
        return self._folder / "run"

    async def run(self) -> None:
        make_authority(self._folder, ["127.0.0.1"])
        for name in self._names:
            make_device(self._folder, name)
        port = _free_port()
        relay = Relay(port)
        self._port = await relay.listen()
        server = self._start_server(port)
        try:
            for name in self._names:
                self._start(name)
            began = time.monotonic()
            faults = asyncio.create_task(self._make_faults(relay))
            while server.poll() is None and not (faults.done() and faults.exception()):
                least = await self._least_memory(server)
                self._read(server.pid, time.monotonic() - began, least)
            if faults.done():
                faults.result()
            faults.cancel()
            self.status = server.returncode
        finally:
            server.kill()
            server.wait()
            for task in self._tasks:
                task.cancel()
            for device in self._devices.values():
                device.kill()
                device.wait()

    def _start_server(self, port: int) -> subprocess.Popen[bytes]:
        authority = authority_files(self._folder)
        own = authority.cert.parent
        recipe = self._folder / "recipe.toml"
        text = RECIPE.format(devices=len(self._names), hours=self._minutes / 60)
        fleet = [DEVICE.format(name=name, speed=self._speed(name)) for name in self._names]
        recipe.write_text("".join([text, *fleet]))
        return self._command(
            "server",
            *("server", str(recipe)),
            *("--listen", f"127.0.0.1:{port}", "--run-dir", str(self.run_folder)),
            *("--tls-ca", str(authority.cert), "--tls-cert", str(own / "server.pem")),
            *("--tls-key", str(own / "server-key.pem")),
        )

    def _start(self, name: str) -> None:
        pair = device_files(self._folder, name)
        self._devices[name] = self._command(
            name,
            *("device", "--server", f"127.0.0.1:{self._port}", "--name", name, "--quiet"),
            *("--tls-ca", str(authority_files(self._folder).cert)),
            *("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)),
            *("--state", str(self._folder / "state"), "--gflops", str(self._speed(name))),
        )

    def _speed(self, name: str) -> float:
        return SPEEDS[self._names.index(name) % len(SPEEDS)]

    def _command(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{log}.log").open("ab") as file:
            command = [sys.executable, "-m", "fedoptima", *words]
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=_environment()
            )

    async def _least_memory(self, server: subprocess.Popen[bytes]) -> float:
        """In MiB, of several looks."""
        found = [resident_mib(server.pid)]
        for _ in range(LOOKS):
            await asyncio.sleep(EVERY / LOOKS)
            if server.poll() is not None:
                break
            found.append(resident_mib(server.pid))
        return min(found)

    def _read(self, pid: int, at: float, mib: float) -> None:
        with suppress(OSError):  # it has just ended
            reading = Reading(at, mib, open_files(pid), threads(pid))
            self.readings.append(reading)
            self.cpu = cpu_seconds(pid)
            print(
                f"{at:6.0f} s: {reading.mib:.1f} MiB, {reading.files} open files, "
                f"{reading.threads} threads; {dict(self.done)}",
                file=sys.stderr,
                flush=True,
            )

    # ---- faults ------------------------------------------------------------------------------

    async def _make_faults(self, relay: Relay) -> None:
        chance = self._chance
        await asyncio.sleep(3 * EVERY)  # all devices are there
        while True:
            await asyncio.sleep(chance.expovariate(1 / MEAN_PAUSE))
            (fault,) = chance.choices(list(FAULTS), list(FAULTS.values()))
            name, patience = chance.choice(self._names), chance.uniform(0, 15)
            device = self._devices[name]
            if fault == "cut":
                relay.cut(chance)
            elif name in self._away:
                continue
            elif device.poll() == 0:
                return  # the run is over, and the server says so to the others
            elif device.poll() is not None:
                raise RuntimeError(f"{name} has ended by itself: {self._said(name)}")
            elif fault == "stop":
                device.send_signal(signal.SIGSTOP)
                self._later(patience, lambda device=device: device.send_signal(signal.SIGCONT))
            else:
                device.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
                self._away.add(name)
                self._later(patience, lambda name=name: self._again(name))
            self.done[fault] += 1

    def _again(self, name: str) -> None:
        old = self._devices[name]
        old.kill()
        old.wait()
        self._start(name)
        self._away.discard(name)

    def _said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()[-1000:]

    def _later(self, seconds: float, work: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            work()

        task = asyncio.create_task(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def measure(minutes: float = 60.0, *, seed: int = 1, devices: int = 6) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        soak = Soak(Path(name), devices=devices, minutes=minutes, seed=seed)
        asyncio.run(soak.run())
        log = (Path(name) / "server.log").read_text()
        if soak.status != 0:
            raise SystemExit(f"the server ended with {soak.status}:\n{log[-4000:]}")
        again = replay(soak.run_folder)
    warm = soak.readings[len(soak.readings) // 6 :]
    third = max(1, len(warm) // 3)

    def level(figure: Callable[[Reading], int]) -> list[float]:
        """Of the first and of the last third: single readings depend on who is connected."""
        ends = (warm[:third], warm[-third:])
        return [statistics.median(map(figure, readings)) for readings in ends]

    return {
        "what": f"{minutes:g} minutes with {devices} devices and {sum(soak.done.values())} faults",
        "seed": seed,
        "faults": dict(soak.done),
        "MiB a minute after warm-up": growth([(each.seconds, each.mib) for each in warm]),
        "at most": MOST_GROWTH,
        "MiB": [round(each.mib, 1) for each in soak.readings[:: max(1, len(soak.readings) // 60)]],
        "open files, first and last third": level(lambda reading: reading.files),
        "threads, first and last third": level(lambda reading: reading.threads),
        "replay": "ok" if again.difference is None else str(again.difference),
        "records": again.records,
        "CPU seconds of the server": round(soak.cpu, 1),
        "tracebacks in the server's log": log.count("Traceback"),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work",
        "versions": f"python {platform.python_version()}, torch {torch.__version__}, "
        f"grpc {grpc.__version__}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--out", type=Path, help="a file for the figures")
    asked = parser.parse_args()
    found = measure(asked.minutes, seed=asked.seed, devices=asked.devices)
    for key, value in found.items():
        print(f"{key}: {value}")
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
