"""Connections that come twice, or never begin, under a server that goes on with its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.jobs import AuxiliaryStep, FullStep
from fedoptima.runtime.device.client import Refused
from fedoptima.runtime.wire.codec import SCHEMA
from fedoptima.version import __version__
from tests.runtime.server.scene import Scene, scene, sessions_of
from tests.support.network import NAMES, QUICK, Server, start_device, tiny_recipe
from tests.support.proxy import Proxy
from tests.support.raw_peer import RawPeer, hello

pytestmark = pytest.mark.usefixtures("logged")


def test_a_device_takes_over_its_own_half_open_connection_at_once(
    tmp_path: Path, logged: Callable[[str], str]
) -> None:
    """The server has not noticed that the old one is dead, and would ask it for ages."""
    patient = replace(QUICK, ping_answer=1000.0)
    recipe = tiny_recipe("fedoptima")
    with (
        Server(recipe, tmp_path / "run", timeouts=patient) as server,
        Proxy(server.address) as proxy,
    ):
        run = Scene(server, proxy, tmp_path)
        run.hold_others()
        run.gate.hold(AuxiliaryStep)
        run.start(*NAMES)
        run.gate.waits_at(AuxiliaryStep)
        proxy.lose_devices()
        logged("slow is back from")
        records = run.finish()
    assert len(sessions_of("slow", records)) == 2


def test_a_device_started_anew_takes_over_a_connection_that_does_not_answer(
    tmp_path: Path, logged: Callable[[str], str]
) -> None:
    hasty = replace(QUICK, ping_answer=0.5)
    with scene(tmp_path, "fl", timeouts=hasty) as run, RawPeer(run.proxy.address) as dead:
        dead.send(hello("slow"))
        dead.hear("welcome")
        run.proxy.go_silent()
        run.devices["slow"] = start_device("slow", run.server.address, tmp_path, gate=run.gate)
        logged("slow is back from")
        run.start("fast", "middle")
        run.finish()


def test_a_second_server_on_the_same_run_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """It would cut back the trace that the first one writes."""
    with scene(tmp_path, "fl") as run:
        with (
            pytest.raises(ConfigError, match="another process is executing this run"),
            Server(tiny_recipe("fl"), tmp_path / "run", resume=True) as second,
        ):
            second.result()
        run.start(*NAMES)
        run.finish()


def test_a_second_live_device_of_a_name_is_refused_and_the_first_goes_on(
    tmp_path: Path, logged: Callable[[str], str]
) -> None:
    with scene(tmp_path, "fl") as run:
        run.gate.hold(FullStep)
        run.start(*NAMES)
        run.gate.waits_at(FullStep)
        twin = start_device("slow", run.server.address, tmp_path / "elsewhere")
        with pytest.raises(Refused, match="refused this device: 'slow' is connected already"):
            twin.answer()
        assert "was refused: 'slow' is connected already" in logged("was refused")
        records = run.finish()
    assert len(sessions_of("slow", records)) == 1


def test_a_connection_without_an_introduction_is_ended(tmp_path: Path) -> None:
    hasty = replace(QUICK, handshake=0.2)
    with (
        Server(tiny_recipe(), tmp_path / "run", timeouts=hasty) as server,
        RawPeer(server.address) as peer,
    ):
        code, why = peer.ending()
    assert (code, why) == (grpc.StatusCode.DEADLINE_EXCEEDED, "no introduction came")


def test_a_device_of_another_protocol_is_told_so(tmp_path: Path) -> None:
    with Server(tiny_recipe(), tmp_path / "run") as server, RawPeer(server.address) as peer:
        peer.send(hello("slow", schema=99, version="9.9"))
        code, why = peer.ending()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert why == (
        f"'slow' has fedoptima 9.9 (protocol 99), this server {__version__} (protocol {SCHEMA}): "
        "install the same version on both"
    )
