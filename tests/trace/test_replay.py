"""Recorded events, fed into fresh cores, give the recorded effects; any other trace is caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Effect, Halt, Note, Run, Send
from fedoptima.core.events import Connected, Disconnected, Event, JobDone, JobFailed, Received
from fedoptima.core.jobs import ServerStep
from fedoptima.core.messages import (
    ActivationBatch,
    GlobalModel,
    GradientBatch,
    Join,
    ModelUpdate,
    TurnOn,
)
from fedoptima.core.server import ServerCore
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.sim.faults import Change, Churn
from fedoptima.trace.difference import Difference
from fedoptima.trace.record import Record
from fedoptima.trace.replay import Verdict, replay_trace
from tests.support.rows import DEFAULTS, ROWS
from tests.support.world import Description, Device, World

D0, D1, D2 = NodeId("d0"), NodeId("d1"), NodeId("d2")
DEVICES = (Device(), Device(speed=2.0, latency=0.3), Device(speed=3.0))
CHANGES = (
    Change(1.0, D0, "cut"),
    Change(2.0, D0, "restore"),
    Change(3.0, D1, "leave"),
    Change(5.0, D1, "return"),
    Change(6.0, D2, "hang"),
    Change(9.0, D2, "leave"),
    Change(10.0, D2, "return"),
)
Trace = tuple[Record, ...]


def world(name: str, **options: object) -> World:
    usual: dict[str, object] = {"devices": DEVICES, "stop": StopRule(rounds=6)}
    return World(Description(ROWS[name](DEFAULTS), **{**usual, **options}))  # type: ignore[arg-type]


@cache
def trace_of(name: str, changes: tuple[Change, ...] = CHANGES) -> Trace:
    story = world(name, changes=changes)
    story.run()
    return tuple(story.records)


def fresh_server(name: str) -> Callable[[], ServerCore]:
    settings = world(name).server._settings
    return lambda: ServerCore(ROWS[name](DEFAULTS), settings)


def replay(name: str, records: Sequence[Record]) -> Verdict:
    return replay_trace(records, fresh_server(name))


def first_difference(name: str, records: Sequence[Record]) -> Difference | None:
    return replay(name, records).difference


def changed(records: Sequence[Record], index: int, **change: object) -> list[Record]:
    return [*records[:index], replace(records[index], **change), *records[index + 1 :]]  # type: ignore[arg-type]


def index_of(records: Sequence[Record], wanted: Callable[[Record], bool]) -> int:
    return next(index for index, record in enumerate(records) if wanted(record))


def received(kind: type, by: NodeId) -> Callable[[Record], bool]:
    def wanted(record: Record) -> bool:
        event = record.event
        return record.node == by and isinstance(event, Received) and isinstance(event.message, kind)

    return wanted


# ---- runs as they are ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_every_method_replays_with_devices_that_come_and_go(name: str) -> None:
    records = trace_of(name)
    verdict = replay(name, records)
    assert verdict.difference is None
    assert verdict.records == len(records)
    assert sum(verdict.nodes.values()) == len(records)
    assert list(verdict.nodes) == [SERVER, D0, D1, D2]


@pytest.mark.parametrize("name", ["fl", "splitfed", "fedoptima"])
def test_a_fleet_in_constant_change_replays(name: str) -> None:
    churn = Churn(seed=5, every=4.0, leave_probability=0.4, slowest=2000.0, fastest=4000.0)
    story = world(name, churn=churn)
    story.run()
    assert first_difference(name, story.records) is None


@pytest.mark.parametrize("name", ["splitfed", "fedoptima"])
def test_the_interleaving_of_nodes_does_not_matter(name: str) -> None:
    """The clocks of a real run agree only roughly: a message may be received before it is sent."""
    by_node = sorted(trace_of(name), key=lambda record: record.node)
    assert first_difference(name, by_node) is None
    late_server = sorted(trace_of(name), key=lambda record: record.node == SERVER)
    assert first_difference(name, late_server) is None


@pytest.mark.parametrize("name", ["pipar", "fedoptima"])
def test_every_beginning_of_a_run_replays(name: str) -> None:
    records = trace_of(name)
    for end in range(0, len(records), 7):
        assert first_difference(name, records[:end]) is None


def test_a_run_that_diverges_replays() -> None:
    story = world("fl", devices=(Device(diverges_at=3), Device()))
    assert story.run().failed
    assert any(isinstance(record.event, JobFailed) for record in story.records)
    settings = story.server._settings
    assert (
        replay_trace(story.records, lambda: ServerCore(ROWS["fl"](DEFAULTS), settings)).difference
        is None
    )


def test_a_peer_that_was_dropped_is_dropped_again() -> None:
    story = world("fedoptima")
    story.watch.expect_drops()

    def break_in(world: World) -> None:
        world.simulation._tell(SERVER, Received(D0, 1, TurnOn()))
        world.simulation._tell(D1, Received(SERVER, 1, Join(0, 8, 1.0, 1.0)))

    story.run(after_step={40: break_in})
    dropped = [record for record in story.records if record.effects and _is_drop(record)]
    assert {record.node for record in dropped} == {SERVER, D1}
    verdict = replay("fedoptima", story.records)
    # The cores agree; what is left to say is that nobody sent these messages.
    assert verdict.difference is not None
    assert verdict.difference.what.startswith("received")
    explained_otherwise = [
        replace(record, effects=[Note("peer dropped", D0, "another reason")])
        if record is dropped[0]
        else record
        for record in story.records
    ]
    difference = first_difference("fedoptima", explained_otherwise)
    assert difference is not None
    assert (difference.record.node, difference.what) == (SERVER, "effect 1, Note.text")


def _is_drop(record: Record) -> bool:
    effect = record.effects[0]
    return isinstance(effect, Note) and effect.kind == "peer dropped"


# ---- cores that are not the recorded ones --------------------------------------------------------


class SendsTheFirstModel(ServerCore):
    """Sends every device the model the run began with: right in everything but the payload."""

    first: Payload | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        return [self._spoilt(effect) for effect in super().handle(event, now)]

    def _spoilt(self, effect: Effect) -> Effect:
        if isinstance(effect, Send) and isinstance(effect.message, GlobalModel):
            self.first = self.first or effect.message.data
            return replace(effect, message=replace(effect.message, data=self.first))
        return effect


class SendsTheLastActivation(DeviceCore):
    last: Payload | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = super().handle(event, now)
        for index, effect in enumerate(effects):
            if isinstance(effect, Send) and isinstance(effect.message, ActivationBatch):
                message = effect.message
                spoilt = replace(message, data=self.last or message.data)
                effects[index] = replace(effect, message=spoilt)
                self.last = message.data
        return effects


@pytest.mark.parametrize("name", ROWS)
def test_a_server_that_sends_another_payload_is_caught(name: str) -> None:
    settings = world(name).server._settings
    difference = replay_trace(
        trace_of(name), lambda: SendsTheFirstModel(ROWS[name](DEFAULTS), settings)
    ).difference
    assert difference is not None
    assert difference.record.node == SERVER
    assert difference.what.endswith("Send.message.data.id")
    assert difference.expected != difference.got == "'server/0/1'"


@pytest.mark.parametrize("name", ["fedoptima", "splitfed", "pipar"])
def test_a_device_that_sends_another_payload_is_caught(name: str) -> None:
    def device(join: Join) -> DeviceCore:
        return SendsTheLastActivation(
            samples=join.samples,
            flops_per_second=join.flops_per_second,
            bytes_per_second=join.bytes_per_second,
            incarnation=join.incarnation,
            step=join.step,
        )

    verdict = replay_trace(trace_of(name), fresh_server(name), device)
    assert verdict.difference is not None
    assert verdict.difference.record.node != SERVER
    assert verdict.difference.what.endswith("Send.message.data.id")
    assert verdict.records == verdict.difference.number < len(trace_of(name))


def test_another_method_is_caught() -> None:
    assert first_difference("fifo", trace_of("oafl")) is not None


def test_a_core_that_breaks_is_caught() -> None:
    class Broken(ServerCore):
        def handle(self, event: Event, now: float) -> list[Effect]:
            if isinstance(event, JobDone) and isinstance(event.job, ServerStep):
                raise KeyError("no such step")
            return super().handle(event, now)

    settings = world("fedoptima").server._settings
    records = trace_of("fedoptima")
    difference = replay_trace(
        records, lambda: Broken(ROWS["fedoptima"](DEFAULTS), settings)
    ).difference
    assert difference is not None
    assert difference.got == "KeyError('no such step')"
    assert isinstance(records[difference.number - 1].event, JobDone)


# ---- traces that are not what happened -----------------------------------------------------------


@pytest.mark.parametrize("name", ["fl", "splitfed", "fedoptima"])
def test_an_effect_taken_away_or_added_is_found_where_it_was(name: str) -> None:
    records = trace_of(name)
    for index, record in enumerate(records):
        extra = [*record.effects, Halt("no reason")]
        for effects in (extra, record.effects[:-1]) if record.effects else (extra,):
            difference = first_difference(name, changed(records, index, effects=effects))
            assert difference is not None
            assert difference.number == index + 1


def test_a_differing_field_is_named_with_both_values() -> None:
    records = trace_of("fedoptima")
    index = index_of(records, lambda r: any(isinstance(e, Run) for e in r.effects))
    run = next(e for e in records[index].effects if isinstance(e, Run))
    effects = [replace(e, ticket=77) if e is run else e for e in records[index].effects]
    difference = first_difference("fedoptima", changed(records, index, effects=effects))
    assert difference is not None
    assert difference.what.endswith("Run.ticket")
    assert (difference.expected, difference.got) == ("77", str(run.ticket))
    said = str(difference)
    assert f"record {index + 1} ({records[index].node} was told" in said
    assert f"expected 77, got {run.ticket}" in said
    assert difference.plain()["node"] == records[index].node


@pytest.mark.parametrize(
    ("kind", "by"),
    [(GlobalModel, D0), (GradientBatch, D0), (ActivationBatch, SERVER), (ModelUpdate, SERVER)],
)
def test_a_payload_that_changes_on_its_way_is_caught(kind: type, by: NodeId) -> None:
    records = trace_of("splitfed")
    index = index_of(records, received(kind, by))
    event = records[index].event
    assert isinstance(event, Received)
    message = event.message
    assert isinstance(message, GlobalModel | GradientBatch | ActivationBatch | ModelUpdate)
    for data in (
        replace(message.data, id=PayloadId("d0/0/999")),
        replace(message.data, nbytes=message.data.nbytes + 1),
    ):
        spoilt = replace(event, message=replace(message, data=data))
        difference = first_difference("splitfed", changed(records, index, event=spoilt))
        assert difference is not None
        assert difference.number == index + 1


@pytest.mark.parametrize("node", [SERVER, D0])
def test_a_result_under_another_name_is_caught(node: NodeId) -> None:
    records = trace_of("fl")
    index = index_of(records, lambda r: r.node == node and isinstance(r.event, JobDone))
    event = records[index].event
    assert isinstance(event, JobDone)
    for name in (f"{node}/0/99", f"{node}/-1/1", f"{node}x/0/{event.ticket}", "nonsense"):
        spoilt = replace(event, result=replace(event.result, id=PayloadId(name)))
        cut = changed(records, index, event=spoilt, effects=[])[: index + 1]
        difference = first_difference("fl", cut)
        assert difference is not None


def test_a_job_answered_that_was_never_ordered_is_caught() -> None:
    records = trace_of("fedoptima")
    step = index_of(
        records, lambda r: isinstance(r.event, JobDone) and isinstance(r.event.job, ServerStep)
    )
    event = records[step].event
    assert isinstance(event, JobDone)
    assert isinstance(event.job, ServerStep)
    job = replace(event.job, data=replace(event.job.data, id=PayloadId("d9/0/9")))
    difference = first_difference(
        "fedoptima", changed(records, step, event=replace(event, job=job))
    )
    assert difference is not None
    assert (difference.number, difference.got) == (step + 1, "'d9/0/9'")
    assert difference.what == "the job answered.job.data.id"


# ---- records that are lost -----------------------------------------------------------------------


def of_device(records: Sequence[Record], device: NodeId) -> list[int]:
    return [index for index, record in enumerate(records) if record.node == device]


def without(records: Sequence[Record], indices: Sequence[int]) -> list[Record]:
    lost = set(indices)
    return [record for index, record in enumerate(records) if index not in lost]


@pytest.mark.parametrize("name", ["fedbuff", "splitfed", "fedoptima"])
def test_a_killed_device_may_have_lost_its_last_records(name: str) -> None:
    records = trace_of(name)
    own = of_device(records, D1)
    births = [i for i in own if isinstance(records[i].event, Connected)]
    assert len(births) == 2, "d1 lives twice"
    first_life = [i for i in own if i < births[1]]
    for lost in range(len(first_life) + 1):
        assert (
            first_difference(name, without(records, first_life[len(first_life) - lost :])) is None
        )
    second_life = [i for i in own if i >= births[1]]
    for lost in range(len(second_life) + 1):
        rest = without(records, second_life[len(second_life) - lost :])
        assert first_difference(name, rest) is None


@pytest.mark.parametrize("name", ["fedbuff", "splitfed", "fedoptima"])
def test_records_lost_in_the_middle_of_a_life_are_missed(name: str) -> None:
    records = trace_of(name, ())
    own = of_device(records, D0)
    sends = [i for i in own if any(isinstance(e, Send) for e in records[i].effects)]
    assert len(sends) > 3
    for index in sends[:-1]:
        assert first_difference(name, without(records, [index])) is not None


def test_a_whole_session_lost_in_the_middle_of_a_life_is_missed() -> None:
    records = trace_of("fedasync")
    own = of_device(records, D0)  # cut off once, and back in the same life
    back = [i for i in own if isinstance(records[i].event, Connected)][1]
    first = [i for i in own if i < back]
    assert first_difference("fedasync", without(records, first)) is not None


def test_a_device_without_any_records_is_taken_at_the_servers_word() -> None:
    records = trace_of("fedoptima")
    assert first_difference("fedoptima", without(records, of_device(records, D2))) is None


def test_what_a_server_sent_is_never_lost_in_a_run_that_ended() -> None:
    """So a device that heard more than the server said is caught."""
    records = trace_of("fedoptima", ())
    last = max(index for index, r in enumerate(records) if received(GlobalModel, D0)(r))
    more = [*records[: last + 1], records[last], *records[last + 1 :]]
    assert first_difference("fedoptima", more) is not None
    alone = [record for record in records if record.node != SERVER]
    assert first_difference("fedoptima", alone) is None  # the server's records are all lost


def test_a_message_that_nobody_sent_and_nobody_minded_is_found() -> None:
    records = trace_of("fedoptima", ())
    gradient = GradientBatch(1, 0, Payload(PayloadId("server/0/9"), 4))
    end = Record(records[-1].at, D0, Disconnected(SERVER, 1), [])
    unheard = Record(records[-1].at, D0, Received(SERVER, 1, gradient), [])
    difference = first_difference("fedoptima", [*records, end, unheard])
    assert difference is not None
    assert (difference.number, difference.what) == (len(records) + 2, "received")
    assert (difference.expected, difference.got) == ("nothing", repr(gradient))


def test_records_that_begin_in_the_middle_of_a_life_are_refused() -> None:
    records = [r for r in trace_of("fl") if r.node == D0][1:]
    difference = first_difference("fl", records)
    assert difference is not None
    assert "first record" in difference.what
    assert difference.number == 1


def test_a_session_ended_and_begun_again_needs_no_word_of_its_end() -> None:
    """A device may learn of the end of a session from the beginning of the next."""
    records = trace_of("fl", CHANGES[:2])
    own = of_device(records, D0)
    end = next(i for i in own if isinstance(records[i].event, Disconnected))
    assert first_difference("fl", without(records, [end])) is None
