"""Recorded events, fed into fresh cores, give the recorded effects; any other trace is caught."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Effect, Halt, Note, Run, Send
from fedoptima.core.errors import TrainingDiverged
from fedoptima.core.events import Event, JobDone, JobFailed, Received
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
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.sim.faults import Churn
from fedoptima.testing.world import Device, World
from fedoptima.trace.record import Record
from fedoptima.verification.core_replay import replay_trace
from tests.support.rows import DEFAULTS, ROWS
from tests.verification.traces import (
    D0,
    D1,
    D2,
    changed,
    first_difference,
    fresh_server,
    index_of,
    received,
    replay,
    trace_of,
    world,
)

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
    story = world(
        "fl", devices=(Device(error=TrainingDiverged("not finite"), fails_at=3), Device())
    )
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
    assert [record.effects[0].about for record in dropped] == [D0, SERVER]  # type: ignore[union-attr]
    for record, other, part in (
        (dropped[0], Note("peer dropped", D0, "another reason"), "text"),
        (dropped[1], Note("peer dropped", D1, dropped[1].effects[0].text), "about"),  # type: ignore[union-attr]
    ):
        told_otherwise = [replace(r, effects=[other]) if r is record else r for r in story.records]
        difference = replay("fedoptima", told_otherwise).difference
        assert difference is not None
        assert (difference.record.node, difference.what) == (record.node, f"effect 1, Note.{part}")


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
    for index, record in islice(enumerate(records), 0, None, 3):
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
    assert f"record {index + 1} ({records[index].node}, " in said
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
