"""kill -9 and Ctrl-C, of devices and of the server, as processes with the real commands."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import cast

import pytest

import fedoptima.core.serializable_types  # noqa: F401  (makes every core class known by name)
from fedoptima.core.effects import Send
from fedoptima.core.events import Connected, Disconnected, JobDone, Received, Restarted
from fedoptima.core.jobs import ExportModel, Merge, ReusedStep
from fedoptima.core.messages import GlobalModel, Join, ModelUpdate, Stop
from fedoptima.core.serialization import thaw
from fedoptima.core.server import ServerCore
from fedoptima.core.types import SERVER
from fedoptima.runtime.timeouts import DEFAULT as TIMEOUTS
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.support.network import until
from tests.support.processes import Command, Fleet, fleet
from tests.support.raw_peer import RawPeer, hello

FOR_EVER = ("--set", "stop.hours=1")  # until the test has seen enough
ROUND = ("--gflops", "0.0016")  # a round takes about half a second
LONG_ROUND = ("--gflops", "0.0003")  # and here some seconds
ENDLESS_ROUND = ("--gflops", "0.000003")  # and here minutes


def sends(records: list[Record], kind: type) -> list[Send]:
    effects = (effect for record in records for effect in record.effects)
    return [e for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def has_sent(fleet: Fleet, name: str, kind: type, times: int = 1) -> None:
    until(
        lambda: len(sends(fleet.records_of(name), kind)) >= times,
        f"{name} has recorded {times} {kind.__name__}",
    )


def trains_again(fleet: Fleet, name: str, meeting: int = 2) -> None:
    """It has met a server for so many times, and has had a model since."""

    def has_a_model() -> bool:
        own = fleet.records_of(name)
        meetings = [i for i, record in enumerate(own) if isinstance(record.event, Connected)]
        if len(meetings) < meeting:
            return False
        events = (record.event for record in own[meetings[-1] :])
        return any(isinstance(e, Received) and isinstance(e.message, GlobalModel) for e in events)

    until(has_a_model, f"{name} trains again")


def finishes_its_round_alone(fleet: Fleet, name: str) -> None:
    """Without a server; what it records is on its own disk then."""

    def holds_an_update() -> bool:
        events = [record.event for record in fleet.kept_by(name)]
        meets = [event for event in events if isinstance(event, Connected | Disconnected)]
        turns = [
            event
            for event in events
            if (isinstance(event, JobDone) and isinstance(event.job, ExportModel))
            or (isinstance(event, Received) and isinstance(event.message, GlobalModel))
        ]
        return isinstance(meets[-1], Disconnected) and isinstance(turns[-1], JobDone)

    until(holds_an_update, f"{name} has finished its round")


def lives_of(name: str, records: list[Record]) -> list[int]:
    """As the server has heard of them."""
    joins = (
        event.message
        for record in records
        if record.node == SERVER
        and isinstance(event := record.event, Received)
        and event.sender == name
    )
    return [join.incarnation for join in joins if isinstance(join, Join)]


def updates(records: list[Record]) -> list[str]:
    """The payloads that were merged, in order."""
    jobs = (record.event.job for record in records if isinstance(record.event, JobDone))
    return [part.data.id for job in jobs if isinstance(job, Merge) for part in job.parts]


def stop(server: Command, *devices: Command, number: signal.Signals = signal.SIGINT) -> None:
    server.interrupt(number)
    assert server.ends() == 128 + signal.SIGINT, server.said
    for device in devices:
        assert device.ends() == 0, device.said
        assert "stopped by its operator" in device.said


def recorded(fleet: Fleet) -> list[Record]:
    again = replay(fleet.run)
    assert again.difference is None, again.difference
    return list(read_trace(fleet.run / "trace.jsonl.gz"))


# ---- a device is killed ----------------------------------------------------------------------


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


def test_a_device_is_killed_while_its_update_waits_to_be_merged(tmp_path: Path) -> None:
    with fleet(tmp_path, "fl") as run:
        server = run.start_server(*FOR_EVER)
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
    assert not any(part.startswith("pi-1/0/") for part in merged), "the barrier let go of it"
    assert any(part.startswith("pi-1/1/") for part in merged)


# ---- the server is killed --------------------------------------------------------------------


def version_kept(run: Fleet) -> int:
    """Of the newest checkpoint; 0: there is none."""
    newest = max((run.run / "checkpoints").glob("[0-9]*/state.json"), default=None)
    if newest is None:
        return 0
    return cast(ServerCore, thaw(json.loads(newest.read_text())["core"])).version


def test_the_server_is_killed(tmp_path: Path) -> None:
    with fleet(tmp_path, "fedoptima") as run:
        server = run.start_server(*FOR_EVER)
        devices = [run.start_device(name, *LONG_ROUND) for name in ("pi-1", "pi-2")]
        until(lambda: version_kept(run) >= 2, "a few merges are kept")
        server.kill()
        kept = version_kept(run)
        for name in ("pi-1", "pi-2"):
            finishes_its_round_alone(run, name)
        assert all(device.alive for device in devices)
        server = run.start_server(resume=True)
        for name in ("pi-1", "pi-2"):
            trains_again(run, name)
        run.end()
        assert server.ends() == 0, server.said
        assert [device.ends() for device in devices] == [0, 0]
        records = recorded(run)
        own = {name: run.records_of(name) for name in ("pi-1", "pi-2")}
    assert "resuming from" in server.said
    assert lives_of("pi-1", records) == lives_of("pi-2", records) == [0, 0]
    lost = max(max(versions_before_resume(records)) for records in own.values()) - kept
    assert lost <= 1, "one checkpoint interval is one merge"
    assert finished_offline(own, updates(records))


@pytest.mark.slow
def test_a_server_that_reuses_batches_is_killed(tmp_path: Path) -> None:
    """What it kept is in its checkpoint: the next one trains on it before any device is back."""
    reuse = ("--set", "method.reuse={batches = 64, uses = 1000}")
    with fleet(tmp_path, "fedoptima") as run:
        server = run.start_server(*FOR_EVER, *reuse)
        devices = [run.start_device(name, *ROUND) for name in ("pi-1", "pi-2")]
        until(lambda: version_kept(run) >= 4, "a few merges are kept")
        server.kill()
        server = run.start_server(resume=True)
        for name in ("pi-1", "pi-2"):
            trains_again(run, name)
        run.end()
        assert server.ends() == 0, server.said
        assert [device.ends() for device in devices] == [0, 0]
        records = recorded(run)
    assert "resuming from" in server.said
    events = [record.event for record in records if record.node == SERVER]
    back = [i for i, event in enumerate(events) if isinstance(event, Connected)][2]
    again = [e for e in events if isinstance(e, JobDone) and isinstance(e.job, ReusedStep)]
    restarted = next(i for i, event in enumerate(events) if isinstance(event, Restarted))
    assert again
    assert any(event in again for event in events[restarted:back])


def versions_before_resume(records: list[Record]) -> list[int]:
    """Of the models that a device had received when it met the server again."""
    meetings = [i for i, record in enumerate(records) if isinstance(record.event, Connected)]
    assert len(meetings) == 2
    events = (record.event for record in records[: meetings[1]])
    messages = (event.message for event in events if isinstance(event, Received))
    return [message.version for message in messages if isinstance(message, GlobalModel)]


def finished_offline(own: dict[str, list[Record]], merged: list[str]) -> list[str]:
    """Updates that were finished without a server, handed in to the next one, and used."""
    done = (record for records in own.values() for record in records)
    return [
        event.result.id
        for record in done
        if isinstance(event := record.event, JobDone)
        and isinstance(event.job, ExportModel)
        and not record.effects
        and event.result.id in merged
    ]


def test_a_server_is_resumed_although_an_old_part_of_its_trace_is_damaged(tmp_path: Path) -> None:
    with fleet(tmp_path, "fl") as run:
        server = run.start_server(*FOR_EVER)
        devices = [run.start_device(name, *ROUND) for name in ("pi-1", "pi-2")]
        until(lambda: version_kept(run) >= 2, "a few merges are kept")
        has_sent(run, "pi-1", ModelUpdate)
        server.kill()
        for trace in (run.run / "trace.jsonl.gz", run.run / "devices" / "pi-1.jsonl.gz"):
            damaged = bytearray(trace.read_bytes())
            place = len(damaged) // 4
            for byte in range(place, place + 20):  # more than a header, where some mean nothing
                damaged[byte] ^= 0xFF
            trace.write_bytes(damaged)
        server = run.start_server(resume=True)
        trains_again(run, "pi-2")
        run.end()
        assert server.ends() == 0, server.said
        assert [device.ends() for device in devices] == [0, 0]
        points = (run.run / "metrics.csv").read_text().splitlines()
    assert "the summary ends where the trace is damaged" in server.said
    assert len(points) > 1


def test_a_device_is_away_when_the_run_ends(tmp_path: Path) -> None:
    with fleet(tmp_path, "fl") as run:
        server = run.start_server("--set", "stop.rounds=1")
        devices = [run.start_device(name) for name in ("pi-1", "pi-2")]
        assert server.ends() == 0, server.said
        assert [device.ends() for device in devices] == [0, 0]
        late = run.start_device("pi-1")
        late.says("trying again")
        server = run.start_server(resume=True)
        assert late.ends() == 0, late.said
        server.says("pi-1 was told that the run is over")
        server.interrupt()
        assert server.ends() == 0, server.said
    assert "pi-1 is done: the run is over: 1 rounds done" in late.said
    assert "1 rounds done" in server.said  # the result


# ---- Ctrl-C ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_sigterm_on_the_server(number: signal.Signals, tmp_path: Path) -> None:
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


# ---- one side hangs --------------------------------------------------------------------------


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
