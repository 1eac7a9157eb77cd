"""Which records a device may hand in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedoptima.core.effects import Note, NoteKind, Run, Send, SetTimer
from fedoptima.core.events import (
    Connected,
    Evaluated,
    JobDone,
    JobFailed,
    Received,
    Restarted,
    TimerFired,
)
from fedoptima.core.jobs import AuxiliaryStep, CloseCopy, FullStep, LoadModel, Prepare
from fedoptima.core.messages import Failed, Join, ModelUpdate, Stop
from fedoptima.core.text import MOST_TEXT
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.trace.device_record import read_device_record
from fedoptima.trace.record import Record
from tests.support.rows import ROWS
from tests.trace.test_record import eventful

PI, OTHER = NodeId("pi"), NodeId("pi-2")
JOB = FullStep(0)
DATA = Payload(PayloadId("pi/0/1"), 8)


def made(*effects: object, event: object = None) -> str:
    return Record(1.0, PI, event or Connected(SERVER, 1), list(effects)).to_line()  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ROWS)
@pytest.mark.parametrize("what", ["diverges", "refused"])
def test_whatever_a_device_records_in_a_run_is_taken_as_it_is(method: str, what: str) -> None:
    found = [r for r in eventful(method, **{what: True}).records if r.node != SERVER]
    assert found
    for record in found:
        assert read_device_record(record.to_line(), record.node) == record


def test_a_device_may_record_a_plan_of_any_length_that_travels() -> None:
    record = Record(1.0, PI, Connected(SERVER, 1), [Run(1, Prepare("x" * (1 << 20)))])
    assert read_device_record(record.to_line(), PI) == record


NOT_ITS_OWN = {
    "of the server": Record(1.0, SERVER, Connected(PI, 1), []).to_line(),
    "of another device": Record(1.0, OTHER, Connected(SERVER, 1), []).to_line(),
}
NOT_A_RECORD = {
    "nothing": "",
    "a number": "1.0",
    "a time": "[1.0]",
    "a torn line": made()[:-2],
    "two lines": f"{made()}\n{made()}",
    "no event": '[1.0,"pi",7]',
    "an event without a name": '[1.0,"pi",[]]',
    "an event whose name is a list": '[1.0,"pi",[["Connected"],"server",1]]',
    "an unknown event": '[1.0,"pi",["NoSuchEvent"]]',
    "an unknown effect": '[1.0,"pi",["Connected","server",1],["NoSuchEffect"]]',
    "fields missing": '[1.0,"pi",["JobDone",1]]',
    "fields too many": '[1.0,"pi",["Connected","server",1,2,3]]',
    "fields of other types": '[1.0,"pi",["JobDone","of","nothing"]]',
    "a text that is a table": '[1.0,"pi",["JobFailed",1,["FullStep",0],{"a":1},false]]',
    "a number that is a truth": '[1.0,"pi",["Connected","server",true]]',
    "a machine": '[1.0,"pi",["ServerCore",{}]]',
    "a payload of text": '[1.0,"pi",["JobDone",1,["FullStep",0],["Payload","pi/0/1","8"]]]',
    "a payload below nothing": '[1.0,"pi",["JobDone",1,["FullStep",0],["Payload","pi/0/1",-8]]]',
    "a time that is no number": '[NaN,"pi",["Connected","server",1]]',
    "a time without end": '[1e999,"pi",["Connected","server",1]]',
    "a time in words": '["1","pi",["Connected","server",1]]',
    "a time as a truth": '[true,"pi",["Connected","server",1]]',
    "a number beyond reason": made(event=JobDone(1, JOB, DATA, samples=10**400)),
    "progress without end": '[1.0,"pi",["JobDone",1,["LoadModel",["Payload","a",1],Infinity]]]',
    "half a character": made(event=JobFailed(1, JOB, "x")).replace("x", "\\ud800"),
    "arrays without end": "[" * 100_000,
    "an error of 651 KiB": made(event=JobFailed(1, JOB, "x" * (651 << 10))),
    "a reason too long": made(Send(SERVER, 1, Failed("x" * (MOST_TEXT + 1)))),
}
NOT_A_DEVICES = {
    "a timer": made(event=TimerFired("credit")),
    "a timer to be set": made(SetTimer("credit", 2.0)),
    "an evaluation": made(event=Evaluated(0, (("accuracy", 1.0),))),
    "a restart": made(event=Restarted()),
    "a connection to another device": made(event=Connected(OTHER, 1)),
    "a message from another device": made(event=Received(OTHER, 1, Stop("the end"))),
    "a message to another device": made(Send(OTHER, 1, Failed("you"))),
    "what only a device says, received": made(event=Received(SERVER, 1, ModelUpdate(0, 8, DATA))),
    "what only a server says, sent": made(Send(SERVER, 1, Stop("the end"))),
    "a job of the server": made(Run(1, CloseCopy(OTHER))),
    "a note about another device": made(Note(NoteKind.DEVICE_FAILED, OTHER, "it cheats")),
}


@pytest.mark.parametrize("name", [*NOT_ITS_OWN, *NOT_A_RECORD, *NOT_A_DEVICES])
def test_everything_else_is_refused(name: str) -> None:
    line = {**NOT_ITS_OWN, **NOT_A_RECORD, **NOT_A_DEVICES}[name]
    with pytest.raises(ValueError, match="a record that"):
        read_device_record(line, PI)


def test_a_refusal_shows_little_of_the_line() -> None:
    with pytest.raises(ValueError, match="no device makes") as refused:
        read_device_record(NOT_A_RECORD["an error of 651 KiB"], PI)
    assert len(str(refused.value)) < 150


def test_what_older_devices_left_out_has_its_default() -> None:
    line = '[1,"pi",["JobDone",1,["AuxiliaryStep",3],["Payload","pi/0/1",8]]]'
    assert read_device_record(line, PI) == Record(1.0, PI, JobDone(1, AuxiliaryStep(3), DATA), [])


def test_a_join_without_and_with_work_is_read() -> None:
    join = Join(0, 32, 1e9, 1e6)
    for sent in (join, replace(join, version=3, pending=DATA.id), replace(join, training=True)):
        record = Record(1.0, PI, Connected(SERVER, 1), [Send(SERVER, 1, sent)])
        assert read_device_record(record.to_line(), PI) == record


def test_a_model_to_load_is_read() -> None:
    record = Record(1.0, PI, Connected(SERVER, 1), [Run(2, LoadModel(DATA, 0.5))])
    assert read_device_record(record.to_line(), PI) == record
