"""A device is killed with -9, or hangs; all are processes with the real commands."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedoptima.core.messages import ModelUpdate
from fedoptima.runtime.timeouts import DEFAULT as TIMEOUTS
from fedoptima.trace.record import Record
from tests.e2e.watching import (
    ENDLESS_ROUND,
    FOR_EVER,
    ROUND,
    has_sent,
    lives_of,
    recorded,
    stop,
    updates,
)
from tests.support.processes import fleet


def test_a_device_is_killed_while_it_waits_for_the_run_to_begin(tmp_path: Path) -> None:
    with fleet(tmp_path, "fl") as run:
        server = run.start_server(*FOR_EVER)
        first = run.start_device("pi-1", *ROUND)
        server.says("pi-1 joined")
        first.kill()
        server.says("pi-1 left")
        again, other = run.start_device("pi-1", *ROUND), run.start_device("pi-2", *ROUND)
        has_sent(run, "pi-1", ModelUpdate, times=2)
        stop(server, again, other)
        records = recorded(run)
    assert lives_of("pi-1", records) == [0, 1]
    assert any(part.startswith("pi-1/1/") for part in updates(records))


def test_a_device_is_killed_in_the_middle_of_an_upload(tmp_path: Path) -> None:
    with fleet(tmp_path, "fl", width=64) as run:  # 160 kB of weights: many seconds of uplink
        server = run.start_server(*FOR_EVER)
        first = run.start_device("pi-1", "--up-mbps", "0.05")
        other = run.start_device("pi-2")
        has_sent(run, "pi-1", ModelUpdate)
        first.kill()
        server.says("pi-1 left")
        has_sent(run, "pi-2", ModelUpdate, times=3)  # training goes on
        left = (tmp_path / "states" / "pi-1.records").read_text().splitlines()[1:]
        again = run.start_device("pi-1")
        has_sent(run, "pi-1", ModelUpdate, times=3)
        stop(server, again, other)
        records = recorded(run)
        own = [(record.event, record.effects) for record in run.records_of("pi-1")]
    assert lives_of("pi-1", records) == [0, 1]
    merged = updates(records)
    last = [(r.event, r.effects) for r in map(Record.from_line, left)]
    assert last
    assert all(record in own for record in last), "what it had recorded outlives its kill"
    assert not any(part.startswith("pi-1/0/") for part in merged), "half an update is none"
    assert any(part.startswith("pi-1/1/") for part in merged)


@pytest.mark.parametrize("kept", [True, False])
def test_a_device_is_killed_while_its_update_waits_to_be_merged(kept: bool, tmp_path: Path) -> None:
    leave = () if kept else ("--set", "method.on_leave=drop")
    with fleet(tmp_path, "fl") as run:
        server = run.start_server(*FOR_EVER, *leave)
        first = run.start_device("pi-1")
        slow = run.start_device("pi-2", *ENDLESS_ROUND)  # the barrier stays closed
        server.says("planned for")
        has_sent(run, "pi-1", ModelUpdate)
        first.kill()
        server.says("pi-1 left")
        again = run.start_device("pi-1")
        server.says("pi-1 joined", times=2)
        slow.kill()
        has_sent(run, "pi-1", ModelUpdate, times=3)
        stop(server, again)
        records = recorded(run)
    assert lives_of("pi-1", records) == [0, 1]
    merged = updates(records)
    assert any(part.startswith("pi-1/0/") for part in merged) is kept
    assert any(part.startswith("pi-1/1/") for part in merged)


@pytest.mark.slow
def test_a_connection_is_half_open(tmp_path: Path) -> None:
    """A stopped process holds its connection and answers nothing: keepalive ends it, both ways."""
    with fleet(tmp_path, "fedoptima") as run:
        server = run.start_server(*FOR_EVER)
        first, other = run.start_device("pi-1", *ROUND), run.start_device("pi-2", *ROUND)
        has_sent(run, "pi-1", ModelUpdate)
        first.pause()
        paused = time.monotonic()
        server.says("pi-1 left")
        noticed = time.monotonic() - paused
        first.go_on()
        server.says("pi-1 joined", times=2)
        devices = first, other
        said = [device.said.count("trying again") for device in devices]  # the first has, before
        server.pause()
        for device, times in zip(devices, said, strict=True):
            device.says("trying again", times + 1)
        server.go_on()
        server.says("pi-1 joined", times=3)  # who is away when it stops does not hear of it
        server.says("pi-2 joined", times=2)
        stop(server, *devices)
        recorded(run)
    # The documented bound, with room for a busy machine; without the setting it takes a minute.
    assert noticed < TIMEOUTS.keepalive_every + TIMEOUTS.keepalive_answer + 25
