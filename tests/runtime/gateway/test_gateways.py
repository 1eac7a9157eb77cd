"""A server with gateways: its devices and its results are those of a server without."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch

from fedoptima.core.jobs import ExportModel, FullStep
from fedoptima.core.messages import ActivationBatch, GlobalModel, Join, ModelUpdate
from fedoptima.core.types import Payload, PayloadId
from fedoptima.experiments.simulation import simulate
from fedoptima.runtime.security.certificates import make_authority, make_device
from fedoptima.runtime.wire.codec import URGENT, encode
from fedoptima.runtime.wire.frames import Chunk
from fedoptima.verification.replay import replay
from tests.runtime.folders import device_of, server_of
from tests.support.network import NAMES, QUICK, Gate, Server, start_device, tiny_recipe, until
from tests.support.processes import fleet
from tests.support.raw_peer import RawPeer, hello

JOIN = Join(incarnation=0, samples=32, flops_per_second=1e9, bytes_per_second=1e6)


def gateways_of(parent: int) -> list[int]:
    """Their process ids."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            status = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"fedoptima.runtime.gateway.front" in words and status[0] != "Z":
            found += [int(folder.name)] if int(status[1]) == parent else []
    return found


def test_devices_train_through_gateways_as_in_a_simulation(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    make_authority(certs)
    for name in NAMES:
        make_device(certs, name)
    recipe = tiny_recipe("splitfed")
    with Server(recipe, tmp_path / "run", tls=server_of(certs), gateways=2) as server:
        assert len(gateways_of(os.getpid())) == 2
        devices = [
            start_device(name, server.address, tmp_path, tls=device_of(certs, name))
            for name in NAMES
        ]
        result = server.result()
        assert [device.answer() for device in devices] == ["2 epochs done"] * 3
    assert not gateways_of(os.getpid())
    assert result.weights_digest == simulate(recipe).weights_digest
    again = replay(tmp_path / "run", weights=True, allow_modules=["tests"])
    assert again.difference is None, again.difference


def test_a_gateway_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is replaced, and its devices come back."""
    gates = {name: Gate() for name in NAMES}
    for gate in gates.values():
        gate.hold(FullStep)
    with Server(tiny_recipe("fl"), tmp_path / "run", gateways=1) as server:
        devices = [
            start_device(name, server.address, tmp_path, gate=gate) for name, gate in gates.items()
        ]
        for gate in gates.values():
            gate.waits_at(FullStep)
        (killed,) = gateways_of(os.getpid())
        os.kill(killed, signal.SIGKILL)
        until(lambda: set(gateways_of(os.getpid())) - {killed}, "another one is there")
        until(lambda: server.watch and len(server.watch.node.sessions) == 3, "all are back")
        for gate in gates.values():
            gate.hold()
        server.result()
        assert [device.answer() for device in devices] == ["2 epochs done"] * 3
    assert "gateway 1 has ended (status -9); starting another" in caplog.text
    assert replay(tmp_path / "run").difference is None


def test_what_the_server_would_not_take_a_gateway_does_not_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    gate.hold(ExportModel)  # or the run might be over before its twin comes
    recipe = tiny_recipe(deploy={"devices": 2})
    with Server(recipe, tmp_path / "run", gateways=2) as server:
        honest = start_device("fast", server.address, tmp_path, gate=gate)
        with RawPeer(server.address) as peer:
            peer.send(hello("slow"))
            peer.hear("welcome")
            peer.say(JOIN)
            peer.wait_for(GlobalModel)
            tensors = {
                "activations.0": torch.full((8, 4, 4, 4), torch.nan),
                "labels": torch.zeros(8, dtype=torch.int64),
            }
            nbytes = sum(tensor.nbytes for tensor in tensors.values())
            peer.say(ActivationBatch(0, Payload(PayloadId("slow/0/1"), nbytes, tensors)))
            code, why = peer.ending()
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "NaN" in why
        with RawPeer(server.address) as twin:
            twin.send(hello("fast"))
            code, why = twin.ending()
        assert code == grpc.StatusCode.ALREADY_EXISTS
        assert "answers: give this device another name" in why
        gate.hold()
        assert honest.answer() == "2 epochs done"
    assert "slow is dropped" in caplog.text
    assert replay(tmp_path / "run").difference is None


def test_a_device_whose_link_stalled_comes_back_through_a_gateway(tmp_path: Path) -> None:
    impatient = replace(QUICK, stall=0.5, ping_every=0.1)
    introduction = hello("slow")
    with Server(tiny_recipe(), tmp_path / "run", timeouts=impatient, gateways=1) as server:
        with RawPeer(server.address) as peer:
            peer.send(introduction)
            peer.hear("welcome")
            data = Payload(PayloadId("slow/0/1"), 16, {"weight": torch.zeros(4)})
            peer.send(encode(ModelUpdate(0, 8, data)).head, Chunk(URGENT, (memoryview(b"1234"),)))
            assert peer.ending()[0] is grpc.StatusCode.UNAVAILABLE
        with RawPeer(server.address) as again:
            again.send(introduction)
            assert again.hear("welcome")


def test_gateways_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    with fleet(tmp_path, "fedoptima") as run:
        server = run.start_server("--gateways", "2", "--set", "stop.hours=1")
        pids = until(lambda: gateways_of(server.pid), "gateways are there")
        server.kill()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "they have ended")
        again = run.start_server("--gateways", "1", resume=True)
        again.interrupt()
        assert again.ends() == 130, again.said
