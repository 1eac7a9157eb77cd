"""Records and text that nobody should read as they are."""

from __future__ import annotations

from fedoptima.core.effects import Note, NoteKind, Send
from fedoptima.core.events import Connected, JobFailed
from fedoptima.core.jobs import FullStep
from fedoptima.core.messages import Failed
from fedoptima.core.types import SERVER, NodeId
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.trace.record import Record
from tests.e2e.hostile.field import (
    BRIEF,
    ESCAPES,
    MALLORY,
    Field,
    before_the_plan,
    during_the_run,
    introduced,
    join,
    member,
    refused,
)
from tests.support.raw_peer import hello


def records(*lines: str, first: int = 0) -> wire.Frame:
    return wire.Frame(telemetry=wire.Telemetry(first=first, lines=lines))


@during_the_run
def send_records_that_nobody_can_read(field: Field) -> None:
    connected = Connected(SERVER, 1)
    for line in (
        '[1.0,"mallory",["JobDone","of","nothing"]]',
        '[1.0,"mallory",["Exec","rm"]]',
        '[1.0,"pi-1",["Disconnected","server",1]]',
        '[1.0,"mallory",["Disconnected","server",1]]\r[2.0,"pi-1",["Disconnected","server",1]]',
        "[" * 100_000,
        '[NaN,"mallory",["Disconnected","server",1]]',
        Record(1e300, MALLORY, connected, []).to_line(),
        Record(
            1.0, MALLORY, connected, [Note(NoteKind.DEVICE_FAILED, NodeId("pi-1"), "cheats")]
        ).to_line(),
        Record(1.0, MALLORY, connected, [Send(SERVER, 1, join(samples=10**18))]).to_line(),
        Record(1.0, MALLORY, JobFailed(1, FullStep(0), ESCAPES), []).to_line(),
        Record(1.0, MALLORY, JobFailed(1, FullStep(0), "x" * (651 << 10)), []).to_line(),
    ):
        with field.peer(BRIEF) as peer:
            introduced(peer)
            peer.send(records(line))
            peer.hear("telemetry_ack")


@during_the_run
def flood_with_records(field: Field) -> None:
    with field.peer(BRIEF) as peer:
        session = introduced(peer)
        line = Record(1.0, MALLORY, Connected(SERVER, session), []).to_line()
        for first in range(0, 200_000, 2000):
            peer.send(records(*[line] * 2000, first=first))
        refused(peer)


@before_the_plan
def introduce_oneself_with_escape_sequences(field: Field) -> None:
    for said in ({"version": ESCAPES}, {"process": ESCAPES}, {"run": ESCAPES}):
        with field.peer() as peer:
            peer.send(hello(MALLORY, **said))
            peer.hear("ping")


@during_the_run
def fail_with_escape_sequences(field: Field) -> None:
    for error in (ESCAPES, "x" * (651 << 10)):
        with field.peer() as peer:
            member(peer)
            peer.say(Failed(error))
            peer.send(wire.Frame(probe=wire.Probe(data=b"x", last=True)))
            peer.hear("probe_ack")
