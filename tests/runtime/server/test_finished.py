"""A run that is over, and devices that do not know."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from threading import Event

import grpc
import pytest

from fedoptima.core.types import NodeId
from fedoptima.runtime.address import Address
from fedoptima.runtime.server.finished import FinishedRun, tell_devices
from fedoptima.runtime.server.reception import Refused, Visitor
from tests.support.network import QUICK, Server, Work, start_device, tiny_recipe, until
from tests.support.raw_peer import RawPeer, hello

NAMES = ("slow", "middle", "fast")


def test_devices_that_come_after_the_end_are_told_once_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[Address] = []
    stop = Event()
    server = Work(
        lambda: asyncio.run(
            tell_devices(
                "2 epochs done",
                3600.0,
                Address("127.0.0.1", 0),
                tls=None,
                timeouts=QUICK,
                interrupted=stop.is_set,
                ready=found.append,
            )
        ),
        "server",
    )
    server.start()
    until(lambda: found, "it listens")
    with caplog.at_level("INFO"):
        for name in ("fast", "slow", "slow"):
            device = start_device(name, found[0], tmp_path)
            assert device.answer() == "the run is over: 2 epochs done"
    stop.set()
    server.answer()
    told = [line for line in caplog.messages if "was told that the run is over" in line]
    assert len(told) == 2
    assert "was refused" not in caplog.text


def test_a_device_that_is_getting_ready_when_the_run_ends_is_told(tmp_path: Path) -> None:
    """It has not read that the run is over, and would look for the server for ever."""
    brief = replace(QUICK, farewell=2.0)
    with (
        Server(tiny_recipe("fl"), tmp_path / "run", timeouts=brief) as server,
        RawPeer(server.address) as late,
    ):
        late.send(hello("late"))
        late.hear("welcome")
        for device in [start_device(name, server.address, tmp_path) for name in NAMES]:
            device.answer()
        assert late.ending() == (grpc.StatusCode.NOT_FOUND, "the run is over")


def test_strangers_under_any_number_of_names_fill_neither_memory_nor_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = FinishedRun("2 epochs done")

    async def come(number: int) -> None:
        with pytest.raises(Refused, match="the run is over: 2 epochs done"):
            await host.admit(Visitor(NodeId(f"d{number}"), "process", 0, "peer"))

    async def all_come() -> None:
        for number in range(10_100):
            await come(number)

    with caplog.at_level("INFO"):
        asyncio.run(all_come())
    assert len(caplog.messages) == 10_001
    assert caplog.messages[-1] == "10000 devices were told so; others are not named"


def test_after_its_time_it_ends() -> None:
    asyncio.run(tell_devices("done", 0.01, Address("127.0.0.1", 0), tls=None))
