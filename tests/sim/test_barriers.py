"""Barriers among devices that come and go, and among those that say nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from fedoptima.core.aggregation import AsyncStaleness, Decision, Offer
from fedoptima.core.effects import Note, NoteKind, Run
from fedoptima.core.errors import Stalled
from fedoptima.core.events import Received
from fedoptima.core.jobs import Merge
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.sim.faults import Change, ChangeKind
from fedoptima.testing.world import Description, Device, World
from tests.support.rows import ROWS, WITH_BARRIER, Options


def happens(device: int, *events: tuple[float, ChangeKind]) -> list[Change]:
    return [Change(at, NodeId(f"d{device}"), kind, 0.0) for at, kind in events]


def merges(world: World) -> int:
    effects = (effect for record in world.records for effect in record.effects)
    return sum(isinstance(e, Run) and isinstance(e.job, Merge) for e in effects)


def not_waited_for(world: World) -> list[str]:
    notes = (e for record in world.records for e in record.effects if isinstance(e, Note))
    return [note.about for note in notes if note.kind == NoteKind.NOT_WAITED_FOR]


def test_under_constant_churn_rounds_come_to_an_end() -> None:
    """Each device is restarted every 75 s, one after the other; a round takes 41 s.

    When newcomers extended the round: 106 updates, no merge in 1,000 s.
    """
    devices, every, end = 8, 75.0, 1000.0
    changes = []
    for device in range(devices):
        at = every * (device + 1) / devices
        while at < end:
            changes += happens(device, (at, "leave"), (at + 1, "return"))
            at += every
    world = World(
        Description(
            ROWS["fl"](Options()),
            [Device()] * devices,
            stop=StopRule(hours=end / 3600),
            changes=changes,
            iterations=10,
        )
    )
    world.run()
    received = [r.event.message for r in world.records if isinstance(r.event, Received)]
    assert sum(isinstance(message, ModelUpdate) for message in received) > 50
    assert merges(world) >= 20


@pytest.mark.parametrize("method", WITH_BARRIER)
@pytest.mark.parametrize("on_leave", ["drop", "wait"])
def test_a_silent_device_costs_one_round_its_patience_and_not_the_run(
    method: str, on_leave: str
) -> None:
    options = Options(on_leave=on_leave)  # type: ignore[arg-type]  # and no barrier_timeout
    description = Description(
        ROWS[method](options),
        [Device()] * 3,
        stop=StopRule(rounds=6),
        changes=happens(2, (12.0, "hang"), (700.0, "leave")),
    )
    world = World(description)
    assert world.run().reason == "6 rounds done"
    assert not_waited_for(world) == ["d2"]
    assert 300 < world.simulation.now < 700  # once; and it does not have to leave first


@pytest.mark.parametrize("leaves_at", [400.0, 1e6])
def test_pipar_continues_after_the_silent_one_has_left(leaves_at: float) -> None:
    options = Options(on_leave="wait")
    changes = happens(2, (12.0, "hang"), (leaves_at, "leave"))
    description = Description(
        ROWS["pipar"](options), [Device()] * 3, stop=StopRule(hours=2000 / 3600), changes=changes
    )
    world = World(description)
    assert "seconds are over" in world.run().reason
    assert world.server.progress.rounds > 50


class Silent(AsyncStaleness):
    def offer(self, offer: Offer) -> Decision:
        return Decision()


def test_a_policy_that_answers_nobody_is_what_a_run_stalls_by() -> None:
    method = replace(ROWS["fedasync"](Options()), aggregation=partial(Silent, 8))
    with pytest.raises(Stalled, match="has answered none of d0; d1; an aggregation policy of your"):
        World(Description(method, [Device()] * 2)).run()


def test_one_that_left_is_waited_for_without_a_timeout_where_that_is_asked_for() -> None:
    left = happens(2, (12.0, "leave"))
    waits = Options(on_leave="wait", barrier_timeout=5.0)
    with pytest.raises(Stalled, match="on_leave is 'wait'"):
        World(Description(ROWS["pipar"](waits), [Device()] * 3, changes=left)).run()
    back = [*left, *happens(2, (1000.0, "return"))]
    world = World(Description(ROWS["pipar"](waits), [Device()] * 3, changes=back))
    assert world.run().reason == "3 rounds done"
    assert world.simulation.now > 1000


@pytest.mark.parametrize("method", WITH_BARRIER)
def test_told_to_wait_nobody_repeats_a_round_that_it_has_handed_in(method: str) -> None:
    """The quick one is away from just after it has handed in until the slow one is nearly done."""
    options = Options(on_leave="wait")
    changes = happens(0, (40.0, "leave"), (60.0, "return"))
    devices = [Device(speed=4.0), Device(speed=0.1)]
    world = World(Description(ROWS[method](options), devices, changes=changes))
    assert world.run().reason == "3 rounds done"
    assert [note.about for note in world.notes("update kept")] == ["d0"]
    assert world.merged() == {"d0": 3, "d1": 3}
    handed_in = [r.event for r in world.records if r.node == SERVER and _is_update(r.event)]
    assert len(handed_in) == 6


def _is_update(event: object) -> bool:
    return isinstance(event, Received) and isinstance(event.message, ModelUpdate)


def test_a_newcomer_is_in_the_round_that_follows() -> None:
    description = Description(
        ROWS["fl"](Options()), [Device(), Device(), Device(joins_at=1.0)], stop=StopRule(rounds=3)
    )
    world = World(description)
    world.run()
    jobs = [e.job for r in world.records for e in r.effects if isinstance(e, Run)]
    sizes = [len(job.parts) for job in jobs if isinstance(job, Merge)]
    assert sizes == [2, 3, 3]
    assert all(record.node in (SERVER, "d0", "d1", "d2") for record in world.records)
