"""Processes with the real commands: when they have come so far, and what they have recorded."""

from __future__ import annotations

import signal

from fedoptima.core.effects import Send
from fedoptima.core.events import Connected, Disconnected, JobDone, Received
from fedoptima.core.jobs import ExportModel, Merge
from fedoptima.core.messages import GlobalModel, Join
from fedoptima.core.types import SERVER
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.support.network import until
from tests.support.processes import Command, Fleet

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
