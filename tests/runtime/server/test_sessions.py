"""Connections that end, hang, come back or come twice, under a server that goes on with its run."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Connected, JobDone, JobFailed, Received
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    FullStep,
    LoadModel,
    Merge,
)
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.types import SERVER, NodeId
from fedoptima.runtime.device.client import Refused, Unreachable
from fedoptima.runtime.timeouts import Timeouts
from fedoptima.runtime.wire.codec import SCHEMA
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from fedoptima.version import __version__
from tests.support.network import (
    NAMES,
    QUICK,
    Gate,
    Server,
    Work,
    start_device,
    tiny_recipe,
    until,
)
from tests.support.proxy import Proxy
from tests.support.raw_peer import RawPeer, hello

pytestmark = pytest.mark.usefixtures("logged")


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[str], str]:
    """Wait until a line with these words is in the log, and return it."""
    caplog.set_level(logging.INFO, "fedoptima")

    def find(words: str) -> str:
        return until(
            lambda: next((line for line in caplog.messages if words in line), None),
            f"{words!r} is in the log",
        )

    return find


class Scene:
    """A run in which "slow" sits behind a proxy and every device can be held."""

    def __init__(self, server: Server, proxy: Proxy, folder: Path) -> None:
        self.server = server
        self.proxy = proxy
        self.folder = folder
        self.gates = {name: Gate() for name in NAMES}
        self.gate = self.gates["slow"]
        self.devices: dict[str, Work] = {}

    def start(self, *names: str) -> None:
        for name in names:
            to = self.proxy.address if name == "slow" else self.server.address
            gate = self.gates[name]
            self.devices[name] = start_device(name, to, self.folder, gate=gate)

    def hold_others(self) -> None:
        """Without this they might be done before anything has happened."""
        for gate in self.gates.values():
            if gate is not self.gate:
                gate.hold(ExportModel)

    def let_others_go(self) -> None:
        for gate in self.gates.values():
            if gate is not self.gate:
                gate.hold()

    @property
    def session(self) -> int:
        """Of "slow", at the server; 0: it is not there."""
        assert self.server.watch is not None
        found = self.server.watch.node.sessions.get(NodeId("slow"))
        return found.number if found else 0

    def comes_back(self, after: int) -> None:
        until(lambda: self.session > after, "the device is back")

    def finish(self) -> list[Record]:
        """All are let go; the run comes to its end and can be explained. What was recorded."""
        for gate in self.gates.values():
            gate.hold()
        result = self.server.result()
        assert result.reason.endswith("done")
        assert [device.answer() for device in self.devices.values()] == [result.reason] * 3
        again = replay(self.server.directory.path, weights=True, allow_modules=["tests"])
        assert again.difference is None, again.difference
        assert again.identical, again.weights
        return list(read_trace(self.server.directory.trace))


@contextmanager
def scene(
    tmp_path: Path, name: str, /, timeouts: Timeouts = QUICK, **parts: object
) -> Iterator[Scene]:
    recipe = tiny_recipe(name, **parts)
    with (
        Server(recipe, tmp_path / "run", timeouts=timeouts) as server,
        Proxy(server.address) as proxy,
    ):
        yield Scene(server, proxy, tmp_path)


def sessions_of(device: str, records: list[Record]) -> list[int]:
    events = (record.event for record in records if record.node == SERVER)
    return [e.session for e in events if isinstance(e, Connected) and e.peer == device]


def updates_of(device: str, records: list[Record]) -> list[tuple[int, ModelUpdate]]:
    """With the session each came in."""
    return [
        (event.session, event.message)
        for record in records
        if record.node == SERVER
        and isinstance(event := record.event, Received)
        and event.sender == device
        and isinstance(event.message, ModelUpdate)
    ]


def merged_parts(records: list[Record]) -> list[str]:
    jobs = (record.event.job for record in records if isinstance(record.event, JobDone))
    return [part.data.id for job in jobs if isinstance(job, Merge) for part in job.parts]


# ---- a connection that is lost in the middle of a round --------------------------------------


@pytest.mark.parametrize(("method", "step"), [("fedoptima", AuxiliaryStep), ("fl", FullStep)])
def test_a_round_that_needs_no_gradient_is_finished_offline_and_handed_in(
    method: str, step: type[AuxiliaryStep | FullStep], tmp_path: Path
) -> None:
    with scene(tmp_path, method) as run:
        run.hold_others()
        run.gate.hold(step)
        run.start(*NAMES)
        run.gate.waits_at(step)
        before = run.session
        run.proxy.block()
        run.gate.hold()
        run.gate.has_done(ExportModel)  # nobody is there to take it
        run.proxy.open()
        run.comes_back(before)
        records = run.finish()
    first, second = sessions_of("slow", records)
    (session, update), *_ = updates_of("slow", records)
    assert first < session == second
    assert update.version == 0
    assert update.data.id in merged_parts(records)
    steps = [job.seq for job in run.gate.done if isinstance(job, step)]
    assert steps == list(range(len(steps))), "nothing was left out or done twice"


@pytest.mark.parametrize("method", ["splitfed", "pipar", "oafl"])
def test_a_round_that_needs_gradients_is_given_up_and_begun_anew(
    method: str, tmp_path: Path
) -> None:
    options = {"micro_batches": 3} if method == "pipar" else {}
    with scene(tmp_path, method, method={"name": method, **options}) as run:
        run.hold_others()
        run.gate.hold(Backward)
        run.start(*NAMES)
        run.gate.waits_at(Backward)
        before = run.session
        run.proxy.cut()
        run.comes_back(before)
        run.gate.hold()
        if method == "splitfed":  # its next round begins when the others have ended this one
            run.let_others_go()
        run.gate.has_done(LoadModel, times=2)
        records = run.finish()
    done = [type(job) for job in run.gate.done]
    second = [index for index, kind in enumerate(done) if kind is LoadModel][1]
    assert ExportModel not in done[:second]
    seen = {job.seq for job in run.gate.done[:second] if isinstance(job, Forward)}
    later = {job.seq for job in run.gate.done[second:] if isinstance(job, Forward)}
    assert max(seen) < min(later), "data that was used is not used again"
    assert len(sessions_of("slow", records)) == 2


def test_a_device_that_fails_offline_comes_back_to_say_what_happened(
    tmp_path: Path, logged: Callable[[str], str]
) -> None:
    with scene(tmp_path, "fl") as run:
        run.hold_others()
        run.gate.hold(FullStep)
        run.start(*NAMES)
        run.gate.waits_at(FullStep)
        run.proxy.block()
        logged("no connection to")
        run.gate.breaks = RuntimeError("out of memory")
        run.gate.hold()
        logged("out of memory")
        run.proxy.open()
        assert run.devices.pop("slow").answer() == "RuntimeError: out of memory"
        for gate in run.gates.values():
            gate.hold()
        assert run.server.result().reason == "2 epochs done"
    events = [record.event for record in read_trace(run.server.directory.trace)]
    assert any(isinstance(e, JobFailed) and "out of memory" in e.error for e in events)
    assert replay(run.server.directory.path).difference is None


def test_a_device_comes_back_again_and_again(tmp_path: Path) -> None:
    with scene(tmp_path, "fedoptima") as run:
        run.hold_others()
        run.gate.hold(LoadModel)
        run.start(*NAMES)
        run.gate.waits_at(LoadModel)
        for _ in range(3):
            before = run.session
            run.proxy.cut()
            run.comes_back(before)
        records = run.finish()
    sessions = sessions_of("slow", records)
    assert len(sessions) == 4
    assert sessions == sorted(set(sessions))


def test_a_device_that_finds_nobody_waits_longer_and_longer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with scene(tmp_path, "fl") as run:
        run.proxy.block()
        run.start(*NAMES)
        address = re.escape(str(run.proxy.address))  # those of other tests may still try
        pattern = re.compile(rf"no connection to {address} .*; trying again in ([0-9.]+) s")

        def waits() -> list[float]:
            found = map(pattern.search, caplog.messages)
            return [float(line.group(1)) for line in found if line]

        until(lambda: len(waits()) >= 4, "the device has tried four times")
        run.proxy.open()
        run.finish()
    first, longest = QUICK.retry_first, QUICK.retry_longest
    for number, wait in enumerate(waits()[:4]):
        most = min(first * 2**number, longest)
        assert most / 2 - 0.06 <= wait <= most + 0.06  # the log rounds


def test_a_device_that_has_waited_long_enough_gives_up(tmp_path: Path) -> None:
    with scene(tmp_path, "fl") as run:
        run.proxy.block()
        device = start_device("slow", run.proxy.address, tmp_path, give_up_after=0.3)
        with pytest.raises(Unreachable, match=rf"no server at {run.proxy.address} for"):
            device.answer()


def test_a_device_gives_up_when_it_has_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last wait is cut: it went on for up to half a minute longer."""
    seldom = replace(QUICK, retry_first=2.5, retry_longest=30.0)
    with scene(tmp_path, "fl") as run:
        run.proxy.block()
        device = start_device(
            "slow", run.proxy.address, tmp_path, give_up_after=3.0, timeouts=seldom
        )
        with pytest.raises(Unreachable):
            device.answer()
    pattern = rf"no connection to {re.escape(str(run.proxy.address))} .*again in ([0-9.]+) s"
    waits = [float(found) for found in re.findall(pattern, caplog.text)]
    assert waits
    assert sum(waits) < 3.0 + 0.05 * len(waits)  # the log rounds


# ---- who comes twice -------------------------------------------------------------------------


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


# ---- who never begins ------------------------------------------------------------------------


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
