"""A whole run on one machine: the server here, every device in its own process.

No device process outlives this one, however it ends: see `fork_server`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from fedoptima.config.fleet import DeviceGroup, FleetConfig, ServerConfig
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError, FedOptimaError
from fedoptima.core.text import printable
from fedoptima.core.types import NodeId
from fedoptima.experiments.fork_server import process_of
from fedoptima.experiments.join import DeviceSetup
from fedoptima.experiments.server_setup import device_names
from fedoptima.named_code import AllowedCode
from fedoptima.preprocess.job_costs import Rates
from fedoptima.runtime.address import Address
from fedoptima.runtime.device.client import Pace
from fedoptima.runtime.device.state import StateFile
from fedoptima.runtime.security.tls import DeviceTLS
from fedoptima.sim.fleet import NodeSpec, build_fleet
from fedoptima.sim.network import with_packing

LOG = logging.getLogger("fedoptima.server")
_BY_ITSELF, _WHEN_ASKED = 1.0, 5.0  # seconds for a device to end
_GFLOPS, _GBYTES, _MBPS = 1e9, 1e9, 1e6 / 8
_SERVER_BYTES, _DEVICE_BYTES = 600_000_000, 100_000_000  # torch once, and what each adds to it
_HOPELESS = 4  # times the memory there is: refused
_CROWD = 8  # processes per core


class DevicesGone(FedOptimaError):
    """Every device's process has ended, and the run is not over."""


def with_devices(recipe: Recipe, count: int | None) -> Recipe:
    """The recipe for this many devices: the first of its fleet, then more like its last one."""
    if count is not None:
        check_room(count)
    if recipe.fleet is None:
        if count is None:
            raise ConfigError("the recipe has no fleet: say how many devices with --devices N")
        groups = (DeviceGroup(name="device", count=count, gflops=1.0),)
        return _with_groups(recipe, ServerConfig(gflops=1.0), groups)
    fleet = build_fleet(recipe.fleet, recipe.seed)
    specs = list(fleet.devices.items())
    if count is None:
        check_room(len(specs))
    if count is None or count == len(specs):
        return recipe
    last = specs[-1][1]
    numbers = (number for number in itertools.count(1) if f"device-{number}" not in fleet.devices)
    while len(specs) < count:
        specs.append((NodeId(f"device-{next(numbers)}"), last))
    server = ServerConfig(
        gflops=fleet.server.flops_per_second / _GFLOPS,
        mbps=fleet.server.up / _MBPS or None,
        **_costs(fleet.server),
    )
    return _with_groups(recipe, server, tuple(_group(*spec) for spec in specs[:count]))


def _group(name: NodeId, spec: NodeSpec) -> DeviceGroup:
    return DeviceGroup(
        name=name,
        gflops=spec.flops_per_second / _GFLOPS,
        up_mbps=spec.up / _MBPS,
        down_mbps=spec.down / _MBPS,
        **_costs(spec),
    )


def _costs(spec: NodeSpec) -> dict[str, Any]:
    """What work costs besides its FLOPs."""
    return {
        "memory_gb_s": spec.memory and spec.memory / _GBYTES,
        "overhead_ms": spec.overhead * 1000,
        "serialization_gb_s": spec.serialization and spec.serialization / _GBYTES,
    }


def _with_groups(recipe: Recipe, server: ServerConfig, groups: tuple[DeviceGroup, ...]) -> Recipe:
    update: dict[str, object] = {"fleet": FleetConfig(server=server, devices=groups)}
    count, wanted = sum(group.count for group in groups), recipe.deploy.devices
    if wanted is not None and wanted > count:  # the others will never join
        update["deploy"] = recipe.deploy.model_copy(update={"devices": count})
    return recipe.model_copy(update=update)


@dataclass(frozen=True)
class LocalFleet:
    """The devices' processes. Called with the server's address, it starts and watches them."""

    recipe: Recipe
    paced: bool  # every device as slow as the fleet says
    states: Path
    logs: Path
    certificates: dict[NodeId, DeviceTLS]  # none: plain connections
    work: Callable[[DeviceSetup], None]  # what a device's process does
    code: AllowedCode  # what the recipe may name

    async def __call__(self, server: Address) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        processes: dict[NodeId, ForkServerProcess] = {}
        # On a thread: the first one waits until the fork server has loaded.
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, server, processes))
        try:
            await asyncio.shield(starting)
            pids = ", ".join(f"{name} ({process.pid})" for name, process in processes.items())
            LOG.info("the devices' processes: %s", pids)
            await asyncio.gather(*(self._watch(*item) for item in processes.items()))
            raise DevicesGone(
                f"every device has ended before the run was over; the reasons are in {self.logs}"
            )
        finally:
            await asyncio.wait([starting])
            await _end(processes.values())

    def _start(self, server: Address, started: dict[NodeId, ForkServerProcess]) -> None:
        for name in device_names(self.recipe):
            process = process_of(self.work, self._setup(name, server), self._log_of(name))
            process.start()
            started[name] = process

    def _log_of(self, name: NodeId) -> Path:
        return self.logs / f"{name}.log"

    def _setup(self, name: NodeId, server: Address) -> DeviceSetup:
        setup = DeviceSetup(
            name=name,
            server=server,
            state=StateFile(self.states / f"{name}.json"),
            tls=self.certificates.get(name),
            directory=self.recipe.data.directory,
            code=self.code,
        )
        if not self.paced:
            return setup
        fleet = build_fleet(self.recipe.fleet, self.recipe.seed)
        spec, packing = fleet.devices[name], fleet.packing(name)
        pace = Pace(with_packing(spec.up, packing), with_packing(spec.down, packing))
        rates = Rates(spec.flops_per_second, spec.memory, spec.overhead)
        return replace(setup, rates=rates, pace=pace)

    async def _watch(self, name: NodeId, process: ForkServerProcess) -> None:
        if code := await _exit_code(process):
            log = self._log_of(name)
            text = f"{name} has ended, {_how(code)}: {_last(log)} (its log is {log})"
            LOG.error(text, extra={"device": name})


async def _end(processes: Collection[ForkServerProcess]) -> None:
    """Devices end by themselves after a finished run; after a failed one they are stopped."""
    ended = await _all_ended(processes, _BY_ITSELF)
    for end in (ForkServerProcess.terminate, ForkServerProcess.kill):
        if not ended:
            for process in processes:
                end(process)
            ended = await _all_ended(processes, _WHEN_ASKED)


async def _all_ended(processes: Collection[ForkServerProcess], patience: float) -> bool:
    try:
        async with asyncio.timeout(patience):
            await asyncio.gather(*map(_exit_code, processes))
    except TimeoutError:
        return False
    return True


async def _exit_code(process: ForkServerProcess) -> int:
    """Below 0: the signal that ended it."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _how(code: int) -> str:
    if code >= 0:
        return f"with code {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


def _last(log: Path) -> str:
    """The last line of a device's log."""
    line = log.read_text(errors="replace").strip().rpartition("\n")[2]
    return printable(line) or "its log is empty"


def check_room(devices: int) -> None:
    """Nobody means to fill a machine several times over: it would take everything down with it."""
    needed, available = _needed_bytes(devices), _available_bytes()
    if available is not None and needed > _HOPELESS * available:
        most = max(1, int(_HOPELESS * available - _SERVER_BYTES) // _DEVICE_BYTES)
        raise ConfigError(
            f"{devices:,} device processes take about {needed / 1e9:,.0f} GB of memory, and "
            f"{available / 1e9:,.0f} GB are available: use at most {most:,} here (--devices), or "
            "simulate them (fedoptima simulate)"
        )


def _needed_bytes(devices: int) -> int:
    return _SERVER_BYTES + devices * _DEVICE_BYTES


def crowding(devices: int) -> str:
    """A warning if this machine is too small for this many devices, or an empty string."""
    cores = os.cpu_count() or 1
    needed, available = _needed_bytes(devices), _available_bytes()
    if available is not None and needed > available:
        return (
            f"{devices} device processes and a server take about {needed / 1e9:.0f} GB of memory, "
            f"and {available / 1e9:.0f} GB are available: the system may end some of them"
        )
    if devices > _CROWD * cores:
        return (
            f"{devices} device processes share {cores} cores: each takes long to start, and is "
            "much slower than alone"
        )
    return ""


def _available_bytes() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text()
        return int(text.partition("MemAvailable:")[2].split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None


def threads_here(devices: int) -> int:
    """Torch threads for each process when a server and this many devices share this machine."""
    return max(1, (os.cpu_count() or 1) // (devices + 1))
