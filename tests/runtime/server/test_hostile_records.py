"""Records that a hostile device has sent, over a whole run: they cost nobody else anything."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fedoptima.core.effects import Send
from fedoptima.core.events import Connected
from fedoptima.core.jobs import ExportModel
from fedoptima.core.messages import Join
from fedoptima.core.types import SERVER, NodeId
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.support.network import Gate, Server, start_device, tiny_recipe
from tests.support.raw_peer import RawPeer, hello

MALLORY = NodeId("slow")  # a name that the recipe knows


def connect(peer: RawPeer) -> Record:
    """And what an honest device would have recorded of it."""
    peer.send(hello(MALLORY))
    session = peer.hear("welcome").welcome.session
    peer.hear("ping")
    join = Join(incarnation=0, samples=32, flops_per_second=1e9, bytes_per_second=1e6)
    return Record(1.0, MALLORY, Connected(SERVER, session), [Send(SERVER, session, join)])


def records(*lines: str) -> wire.Frame:
    return wire.Frame(telemetry=wire.Telemetry(first=0, lines=lines))


def test_records_that_make_no_sense_do_not_cost_the_run_its_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an earlier version kept them. Page, report and replay name the device, and go on."""
    recipe = tiny_recipe("fl", deploy={"devices": 1})
    with Server(recipe, tmp_path / "run") as server:
        with RawPeer(server.address) as peer:
            peer.send(records(connect(peer).to_line()))
            peer.hear("telemetry_ack")
        file = server.directory.devices / f"{MALLORY}.jsonl.gz"
        with gzip.open(file, "ab") as lines:
            lines.write(b'[1.0,"slow",\r["JobDone","of","nothing"]]\n')
        device = start_device("fast", server.address, tmp_path)
        result = server.result()
        device.answer()
    assert result.reason == "2 epochs done"
    assert result.usage["fast"].busy > 0
    assert f"{file}: records that cannot be read are left out (line 3" in caplog.text
    again = replay(tmp_path / "run")
    assert again.difference is None
    assert again.nodes["slow"] == 1


def test_a_run_is_resumed_though_a_device_wrote_carriage_returns(tmp_path: Path) -> None:
    recipe = tiny_recipe("fl", deploy={"devices": 1})
    gate = Gate()
    with Server(recipe, tmp_path / "run") as server:
        gate.hold(ExportModel)
        device = start_device("fast", server.address, tmp_path, gate=gate)
        gate.waits_at(ExportModel)
        with RawPeer(server.address) as peer:
            peer.send(records(connect(peer).to_line().replace(",", ",\r")))
            assert peer.hear("telemetry_ack").telemetry_ack.records == 1
        server.interrupt()
        device.answer()
    gate.hold()
    with Server(recipe, tmp_path / "run", port=server.address.port, resume=True) as resumed:
        with RawPeer(resumed.address) as peer:
            peer.send(hello(MALLORY))
            assert peer.hear("welcome").welcome.records == 1
        device = start_device("fast", resumed.address, tmp_path)
        assert resumed.result().reason == "2 epochs done"
        device.answer()
