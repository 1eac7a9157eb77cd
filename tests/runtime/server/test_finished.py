"""A run that is over, and devices that do not know."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event

import pytest

from fedoptima.runtime.address import Address
from fedoptima.runtime.server.finished import tell_devices
from tests.support.network import QUICK, Work, start_device, until


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


def test_after_its_time_it_ends() -> None:
    asyncio.run(tell_devices("done", 0.01, Address("127.0.0.1", 0), tls=None))
