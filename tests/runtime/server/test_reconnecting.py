"""Connections that are lost in the middle of a run, and devices that come back or give up."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.core.events import JobDone, JobFailed, Received
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
from fedoptima.core.types import SERVER
from fedoptima.runtime.device.client import Unreachable
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.runtime.server.scene import scene, sessions_of
from tests.support.network import NAMES, QUICK, start_device, until

pytestmark = pytest.mark.usefixtures("logged")


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
