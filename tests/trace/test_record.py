from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast, get_args

import pytest

from fedoptima.core import effects, events
from fedoptima.core.errors import TrainingDiverged
from fedoptima.core.jobs import FullStep, PlanRun
from fedoptima.core.messages import Assignment, ProgramSpec
from fedoptima.core.serialization import freeze
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.sim.faults import Change
from fedoptima.testing.world import Description, Device, World
from fedoptima.trace.record import UNREADABLE, Record
from tests.support.rows import ROWS, Options


def eventful(
    method: str,
    *,
    diverges: bool = False,
    unmeasurable: bool = False,
    refused: bool = False,
    keeps: bool = False,
) -> World:
    """A run with every kind of event and effect the method knows."""
    options = Options(cap=2, credit_timeout=4.0, barrier_timeout=6.0, max_delay=1)
    fleet = [
        Device(),
        Device(2.0, 1064.0, hands_in_nan=refused),
        Device(8.0, error=TrainingDiverged("not finite") if diverges else None, fails_at=12),
        Device(4.0, joins_at=4.0),
    ]
    description = Description(
        ROWS[method](replace(options, on_leave="keep") if keeps else options),
        fleet,
        stop=StopRule(rounds=4, hours=200.0 / 3600),
        changes=[
            Change(9.0, NodeId("d1"), "cut"),
            Change(12.0, NodeId("d1"), "restore"),
            Change(13.0, NodeId("d3"), "hang"),
        ],
        drop_diverged=True,
        evaluation_diverges_at=1 if unmeasurable else None,
        evaluate_every=0.5,
    )
    world = World(description)
    if refused:
        world.watch.expect_drops()
    world.run()
    return world


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("method", ROWS)
def test_every_line_of_a_run_comes_back_as_an_equal_record(method: str, keeps: bool) -> None:
    for record in eventful(method, keeps=keeps).records:
        line = record.to_line()
        back = Record.from_line(line)
        assert back == record
        assert back.to_line() == line


def test_these_runs_know_every_event_and_every_effect() -> None:
    seen = set()
    for method in ROWS:
        for what in ("diverges", "unmeasurable", "refused", "keeps"):
            for record in eventful(method, **{what: True}).records:
                seen |= {type(record.event), *map(type, record.effects)}
    # A simulated server has one process from beginning to end, and engines without tensors have no
    # step that must be undone or that fails late. Nobody extends or ends these runs, and their
    # devices have no cuts of their own that they would measure for.
    never = {events.Restarted, events.Extended, events.Ended, events.FailedLate, events.Measured}
    assert seen >= {*get_args(events.Event), *get_args(effects.Effect)} - never - {effects.Drop}


def test_what_these_runs_do_not_have_comes_back_as_equal_records_too() -> None:
    dropped = effects.Drop(NodeId("a"), 3, "its batch made the loss infinite")
    late = events.FailedLate("not finite", diverged=True)
    for event in (events.Restarted(), late, events.Measured(1.5, 2e6)):
        record = Record(2.5, SERVER, event, [dropped])
        assert Record.from_line(record.to_line()) == record


def test_tensors_are_never_in_a_trace() -> None:
    data = Payload(PayloadId("a/0/1"), 8, "secret weights")
    record = Record(1.5, NodeId("a"), events.JobDone(1, FullStep(0), data), [])
    assert "secret" not in record.to_line()
    assert '["Payload","a/0/1",8]' in record.to_line()


def test_a_record_can_be_kept_without_its_tensors() -> None:
    data = Payload(PayloadId("a/0/1"), 8, "weights")
    record = Record(1.5, NodeId("a"), events.JobDone(1, FullStep(0), data), [])
    kept = record.without_tensors()
    assert kept == record
    assert isinstance(kept.event, events.JobDone)
    assert kept.event.result.value is None


def test_a_line_is_json_that_begins_with_time_and_node() -> None:
    record = Record(1.5, NodeId("a"), events.TimerFired("credit"), [effects.Halt("done")])
    line = json.loads(record.to_line())
    assert line == [1.5, "a", ["TimerFired", "credit"], ["Halt", "done", False]]


def test_times_come_back_to_the_last_bit() -> None:
    at = 0.1 + 0.2
    record = Record(at, NodeId("gerät"), events.TimerFired("credit"), [])
    back = Record.from_line(record.to_line())
    assert back.at == at
    assert back.node == "gerät"


@pytest.mark.parametrize("kind", effects.NoteKind)
def test_a_note_of_a_known_kind_is_a_plain_string_on_disk(kind: effects.NoteKind) -> None:
    record = Record(1.5, NodeId("a"), events.TimerFired("x"), [effects.Note(kind, NodeId("b"))])
    line = record.to_line()
    assert json.loads(line)[3] == ["Note", str(kind), "b", ""]
    assert Record.from_line(line) == record


def test_a_note_of_a_kind_that_another_version_knows_can_be_read() -> None:
    line = '[1.5,"a",["TimerFired","x"],["Note","weather changed","b",""]]'
    assert Record.from_line(line).to_line() == line


# ---- a long text is written once -----------------------------------------------------------------

PLAN = json.dumps({"blocks": ["conv"] * 60, "words": 'a "quoted" one'})


def assigned(*devices: str, plan: str = PLAN) -> Record:
    """The server has its plan, and sends it to every device."""
    done = events.JobDone(1, PlanRun(()), Payload(PayloadId("model"), 8), text=PLAN)
    assignment = Assignment(plan, ProgramSpec("full"), 3)
    sends = [effects.Send(NodeId(name), 1, assignment) for name in devices]
    return Record(0.5, SERVER, done, sends)


def test_a_plan_is_written_once_whatever_the_number_of_devices() -> None:
    alone, many = assigned("a"), assigned(*"abcdefgh")
    assert many.to_line().count("quoted") == alone.to_line().count("quoted") == 1
    assert Record.from_line(many.to_line()) == many
    assert Record.from_line(many.to_line()).to_line() == many.to_line()


def test_effects_that_repeat_a_long_text_hold_one_copy_of_it() -> None:
    back = Record.from_line(assigned(*"abc").to_line())
    plans = {id(cast("Any", effect).message.plan) for effect in back.effects}
    assert plans == {id(cast("Any", back.event).text)}


def test_another_text_that_contains_the_long_one_is_left_alone() -> None:
    record = assigned("a", plan=f'x"{PLAN}"\\')
    assert Record.from_line(record.to_line()) == record


def test_a_line_of_a_version_that_wrote_every_text_out_is_read_as_before() -> None:
    record = assigned("a", "b")
    plain = [0.5, SERVER, freeze(record.event), *map(freeze, record.effects)]
    assert Record.from_line(json.dumps(plain, separators=(",", ":"))) == record


@pytest.mark.parametrize("number", ["7", "null", '"x"', "1e3", "[]"])
def test_a_reference_to_a_text_that_is_not_there_is_unreadable(number: str) -> None:
    line = assigned("a").to_line().replace('["=",0]', f'["=",{number}]')
    with pytest.raises(UNREADABLE):
        Record.from_line(line)
