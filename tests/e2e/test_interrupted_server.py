"""Ctrl-C, SIGTERM and SIGHUP on the server; all are processes with the real commands."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from fedoptima.core.events import Connected
from fedoptima.core.messages import ModelUpdate, Stop
from fedoptima.core.types import SERVER
from tests.e2e.watching import FOR_EVER, LONG_ROUND, has_sent, lives_of, recorded, stop, updates
from tests.support.processes import fleet
from tests.support.raw_peer import RawPeer, hello


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_sigterm_or_a_closed_terminal_on_the_server(
    number: signal.Signals, tmp_path: Path
) -> None:
    ends = ("--set", "stop.rounds=6")
    with fleet(tmp_path, "splitfed") as run:
        server = run.start_server(*ends)
        devices = [run.start_device(name, *LONG_ROUND) for name in ("pi-1", "pi-2")]
        has_sent(run, "pi-1", ModelUpdate, times=2)
        stop(server, *devices, number=number)
        assert "--resume" in server.said, "it says how to go on"
        before = recorded(run)
        server = run.start_server(resume=True)
        devices = [run.start_device(name) for name in ("pi-1", "pi-2")]
        assert server.ends() == 0, server.said
        assert [device.ends() for device in devices] == [0, 0]
        records = recorded(run)
    assert 0 < len(updates(before)) < len(updates(records)) == 12, "nobody merged alone"
    assert json.loads((run.run / "summary.json").read_text())["rounds"] == 6
    assert lives_of("pi-1", records) == [0, 1]
    connected = [r for r in records if r.node == SERVER and isinstance(r.event, Connected)]
    assert len(connected) == 4


def test_a_second_interrupt_ends_the_server_at_once(tmp_path: Path) -> None:
    with fleet(tmp_path, "fl") as run:
        server = run.start_server(*FOR_EVER)
        with RawPeer(run.address) as deaf:  # it is told to stop, and does not
            deaf.send(hello("pi-1"))
            deaf.hear("welcome")
            server.interrupt()
            deaf.wait_for(Stop)
            server.interrupt()
            assert server.ends() == 130, server.said
    assert "in time" not in server.said, "it has waited for a device"
