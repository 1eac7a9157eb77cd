"""Rows of docs/deployment.md's table "When something fails", as processes with the real commands.

Its other rows are tests of the same name elsewhere (tests/documents/test_failures.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedoptima.core.effects import Run
from fedoptima.core.events import Disconnected, Received
from fedoptima.core.jobs import ServerStep
from fedoptima.core.messages import ActivationBatch, Join, ModelUpdate
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record
from fedoptima.trace.writer import read_records
from tests.e2e.watching import (
    FOR_EVER,
    ROUND,
    finishes_its_round_alone,
    has_sent,
    lives_of,
    recorded,
    stop,
    trains_again,
    updates,
)
from tests.support.network import until
from tests.support.processes import Fleet, fleet
from tests.support.proxy import Proxy
from tools.chaos.damage import WAYS, damage

ONE_CREDIT = ("--set", "method.activation_cap=1")


def joins_of(name: str, records: list[Record]) -> list[Join]:
    events = (record.event for record in records if record.node == SERVER)
    received = (e for e in events if isinstance(e, Received) and e.sender == name)
    return [event.message for event in received if isinstance(event.message, Join)]


def test_a_device_is_killed_or_loses_power(tmp_path: Path) -> None:
    with fleet(tmp_path, "fedoptima") as run:
        server = run.start_server(*FOR_EVER, *ONE_CREDIT)
        first, other = run.start_device("pi-1", *ROUND), run.start_device("pi-2", *ROUND)
        has_sent(run, "pi-1", ActivationBatch, times=2)
        first.kill()
        server.says("pi-1 left")
        step = json.loads((run.states / "pi-1.json").read_text())["step"]
        has_sent(run, "pi-2", ModelUpdate, times=3)  # the only credit is given to it
        again = run.start_device("pi-1", *ROUND)
        until(lambda: trained_on(run, "pi-1/1/"), "the server trains on what it sends now")
        stop(server, again, other)
        records = recorded(run)
    assert lives_of("pi-1", records) == [0, 1]
    assert [join.step for join in joins_of("pi-1", records)] == [0, step]
    own = [record for record in records if record.node == SERVER]
    gone = next(
        i for i, r in enumerate(own) if isinstance(r.event, Disconnected) and r.event.peer == "pi-1"
    )
    steps = [e.job for r in own[gone:] for e in r.effects if isinstance(e, Run)]
    origins = [(job.origin, job.session) for job in steps if isinstance(job, ServerStep)]
    assert (NodeId("pi-1"), 1) not in origins, "what it had sent is dropped"
    assert {"pi-1", "pi-2"} == {origin for origin, _ in origins}


def trained_on(run: Fleet, payloads: str) -> bool:
    """The server has recorded a step on a batch whose name begins so."""
    effects = (e for _, r in read_records(run.run / "trace.jsonl.gz") for e in r.effects)
    jobs = (effect.job for effect in effects if isinstance(effect, Run))
    return any(isinstance(job, ServerStep) and job.data.id.startswith(payloads) for job in jobs)


@pytest.mark.parametrize("method", ["fedoptima", "splitfed"])
def test_the_connection_breaks(method: str, tmp_path: Path) -> None:
    with fleet(tmp_path, method) as run, Proxy(run.address) as relay:
        server = run.start_server(*FOR_EVER)
        device = run.start_device("pi-1", *ROUND, through=relay.address)
        other = run.start_device("pi-2", *ROUND)
        has_sent(run, "pi-1", ModelUpdate)
        relay.block()
        device.says("trying again in")
        if method == "fedoptima":
            finishes_its_round_alone(run, "pi-1")
        relay.open()
        trains_again(run, "pi-1")
        stop(server, device, other)
        records = recorded(run)
    assert lives_of("pi-1", records) == [0, 0]
    back = joins_of("pi-1", records)[1]
    if method == "splitfed":
        assert not back.has_work, "without gradients the round cannot go on"
    else:
        assert back.pending is not None, "the round was finished in the meantime"
        assert back.pending in updates(records)


def test_a_checkpoint_is_damaged(tmp_path: Path) -> None:
    """So that only its checksums tell, then so that it cannot be read; config.json with it."""
    with fleet(tmp_path, "fedoptima") as run:
        server = run.start_server(*FOR_EVER)
        devices = [run.start_device(name, *ROUND) for name in ("pi-1", "pi-2")]
        for meeting, way in enumerate((0, len(WAYS) - 2), start=2):
            before = newest(run)
            until(lambda seen=before: newest(run) > seen + 2, "there are new checkpoints")
            server.kill()
            damaged = run.run / "checkpoints" / f"{newest(run):012d}"
            damage(damaged, way)
            (run.run / "config.json").write_text("{")
            server = run.start_server(resume=True)
            server.says(f"{damaged}: ")
            server.says(f"{run.run / 'config.json'}: damaged")
            for name in ("pi-1", "pi-2"):  # one that tries seldom could miss this server
                trains_again(run, name, meeting=meeting)
        run.end()
        assert server.ends() == 0, server.said
        assert [device.ends() for device in devices] == [0, 0]
        recorded(run)


def newest(run: Fleet) -> int:
    names = [path.name for path in (run.run / "checkpoints").glob("[0-9]*")]
    return max((int(name) for name in names if name.isdecimal()), default=-1)
