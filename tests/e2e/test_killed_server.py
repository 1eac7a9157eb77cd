"""The server is killed with -9 and resumed; all are processes with the real commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

import fedoptima.core.serializable_types  # noqa: F401  (makes every core class known by name)
from fedoptima.core.events import Connected, JobDone, Received, Restarted
from fedoptima.core.jobs import ExportModel, ReusedStep
from fedoptima.core.messages import GlobalModel, ModelUpdate
from fedoptima.core.serialization import thaw
from fedoptima.core.server import ServerCore
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record
from tests.e2e.watching import (
    FOR_EVER,
    LONG_ROUND,
    ROUND,
    finishes_its_round_alone,
    has_sent,
    lives_of,
    recorded,
    trains_again,
    updates,
)
from tests.support.network import until
from tests.support.processes import Fleet, fleet


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
    assert "pi-1 is done: the run is over: 1 round done" in late.said
    assert "1 round done" in server.said  # the result
