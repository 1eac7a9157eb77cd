"""A run on one machine: which devices it has, and what is said of those that end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from fedoptima.cli.commands.device import device_process
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.join import DeviceSetup
from fedoptima.experiments.local_fleet import (
    DevicesGone,
    LocalFleet,
    crowding,
    threads_here,
    with_devices,
)
from fedoptima.experiments.server_setup import device_names
from fedoptima.named_code import NO_CODE
from fedoptima.runtime.address import Address
from fedoptima.sim.fleet import build_fleet
from tests.support.network import tiny_recipe

FLEET = {
    "server": {"gflops": 7.0},
    "devices": [
        {"name": "device-1", "gflops": 0.1, "mbps": 5.0},
        {"name": "fast", "count": 2, "gflops": 0.3, "up_mbps": 2.0, "down_mbps": 8.0},
    ],
}


def recipe(**parts: object) -> Recipe:
    return tiny_recipe("fl", **{"fleet": FLEET, **parts})


def test_without_a_number_the_fleet_stays_as_it_is() -> None:
    assert with_devices(recipe(), None) == recipe()
    assert with_devices(recipe(), 3) == recipe()


def test_fewer_devices_are_the_first_ones() -> None:
    assert device_names(with_devices(recipe(), 2)) == ["device-1", "fast-1"]


def test_more_devices_are_like_the_last_one_under_names_of_their_own() -> None:
    more = with_devices(recipe(), 5)
    fleet = build_fleet(more.fleet, more.seed)
    assert list(fleet.devices) == ["device-1", "fast-1", "fast-2", "device-2", "device-3"]
    last, added = fleet.devices["fast-2"], fleet.devices["device-3"]  # type: ignore[index]
    assert (added.flops_per_second, added.up, added.down) == pytest.approx(
        (last.flops_per_second, last.up, last.down)
    )
    assert fleet.server.flops_per_second == pytest.approx(7e9)


def test_what_work_costs_stays_with_the_devices_and_the_server() -> None:
    costs = {"memory_gb_s": 4.0, "overhead_ms": 5.0, "serialization_gb_s": 0.5}
    groups = [{"name": "a", "gflops": 0.1, **costs}]
    more = with_devices(
        recipe(fleet={"server": {"gflops": 7.0, "mbps": 80.0, **costs}, "devices": groups}), 2
    )
    fleet = build_fleet(more.fleet, more.seed)
    for node in (fleet.server, *fleet.devices.values()):
        assert (node.memory, node.overhead, node.serialization) == (4e9, 0.005, 5e8)
    assert (fleet.server.up, fleet.server.down) == (1e7, 1e7)


def test_a_recipe_without_a_fleet_needs_a_number() -> None:
    assert device_names(with_devices(recipe(fleet=None), 2)) == ["device-1", "device-2"]
    with pytest.raises(ConfigError, match="--devices N"):
        with_devices(recipe(fleet=None), None)


def test_the_server_does_not_wait_for_devices_that_are_never_started() -> None:
    waits = recipe(deploy={"devices": 3})
    assert with_devices(waits, 2).deploy.devices == 2
    assert with_devices(waits, 5).deploy.devices == 3


def test_cores_are_shared_out_to_all_processes() -> None:
    assert threads_here(10_000) == 1
    assert threads_here(0) == (os.cpu_count() or 1)


def test_too_many_devices_are_warned_of() -> None:
    assert "100000 device processes" in crowding(100_000)
    assert crowding(0) == ""


@pytest.mark.parametrize("count", [10**7, 10**19])
def test_devices_that_would_take_the_machine_down_are_refused_at_once(count: int) -> None:
    with pytest.raises(ConfigError, match=r"device processes take about .* use at most [0-9,]+ "):
        with_devices(recipe(), count)


def refuses(_: DeviceSetup) -> None:
    print("error: not today", flush=True)
    sys.exit(2)


def test_devices_that_end_are_reported_with_their_last_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = device_names(recipe())
    logs = tmp_path / "logs"
    fleet = LocalFleet(recipe(), True, tmp_path / "states", logs, {}, refuses, NO_CODE)
    with caplog.at_level(logging.INFO), pytest.raises(DevicesGone, match="logs"):
        asyncio.run(fleet(Address("127.0.0.1", 1)))
    ended = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert sorted(getattr(record, "device", "") for record in ended) == sorted(names)
    assert all("with code 2: error: not today" in r.getMessage() for r in ended)
    assert sorted(path.name for path in logs.iterdir()) == sorted(f"{n}.log" for n in names)


def test_a_fleet_that_is_given_up_leaves_no_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = with_devices(recipe(), 1)
    fleet = LocalFleet(
        one, False, tmp_path / "states", tmp_path / "logs", {}, device_process, NO_CODE
    )

    async def give_up() -> None:
        running = asyncio.ensure_future(fleet(Address("127.0.0.1", 1)))  # nobody there: they retry
        async with asyncio.timeout(180):
            while "processes" not in caplog.text:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with caplog.at_level(logging.INFO):
        asyncio.run(give_up())
    pid = int(caplog.text.partition("device-1 (")[2].partition(")")[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
