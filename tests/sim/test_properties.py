"""Laws that hold in every run, whatever the fleet, the method and the misfortunes.

`World` checks every machine's invariants, and its own books of the laws, after every event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedoptima.core.events import Disconnected, Event, Received
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    Failed,
    GlobalModel,
    GradientBatch,
    HandIn,
    Join,
    Message,
    ModelUpdate,
    ProgramSpec,
    Stop,
    TurnOn,
)
from fedoptima.core.serialization import freeze
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.sim.faults import Change
from fedoptima.testing import laws
from fedoptima.testing.checking import STEPS
from fedoptima.testing.fleets import Build, calm
from fedoptima.testing.world import Description, Device, World
from tests.support.fleets import descriptions
from tests.support.rows import CAPPED, ROWS, WITH_BARRIER, WITHOUT_BARRIER, Options


def drawn_rows(name: str) -> Build:
    return lambda devices: ROWS[name](Options(participation=0.25))


@given(descriptions())
def test_every_run_in_which_somebody_is_left_ends_by_its_stop_rule(
    description: Description,
) -> None:
    laws.run_ends_by_its_stop_rule(description)


@given(descriptions())
def test_the_same_description_gives_the_same_digest(description: Description) -> None:
    laws.run_is_the_same_again(description)


@given(descriptions(), STEPS)
def test_saving_and_restoring_everything_changes_nothing_that_follows(
    description: Description, steps: set[int]
) -> None:
    laws.checkpoints_change_nothing(description, steps)


@pytest.mark.parametrize("method", ROWS)
def test_a_run_may_be_saved_and_restored_after_every_single_event(method: str) -> None:
    laws.checkpoints_change_nothing(_unlucky_fleet(method), range(100_000))


@given(descriptions(methods=CAPPED))
def test_the_cap_holds_at_every_instant(description: Description) -> None:
    assert description.cap is not None
    laws.cap_holds_at_every_instant(description)


@given(descriptions(methods=WITHOUT_BARRIER, stay_hung=True))
def test_hung_devices_never_stop_the_others(description: Description) -> None:
    laws.run_ends_by_its_stop_rule(description)


@given(
    st.one_of(
        descriptions(methods=WITH_BARRIER, stay_hung=True, on_leave=("drop",)),
        descriptions(methods=WITH_BARRIER, stay_hung=True, kinds=("hang", "bandwidth")),
    )
)
def test_hung_devices_never_stop_the_others_at_a_barrier(description: Description) -> None:
    """Told to wait, it waits for one that has left, of course: here none does."""
    laws.run_ends_by_its_stop_rule(description)


@given(descriptions(methods=WITHOUT_BARRIER, delays=(0, 1)))
def test_a_refused_update_is_answered_before_the_server_goes_on(description: Description) -> None:
    World(description).run()  # see Watch: no step and no merge while a refusal is unanswered


@given(descriptions(), st.integers(1, 400))
def test_nothing_of_a_dead_session_is_acted_on(description: Description, step: int) -> None:
    whole, haunted = World(description), World(description)
    whole.run()
    haunted.run(after_step={step: _haunt})
    assert haunted.digest == whole.digest


def _haunt(world: World) -> None:
    """Deliver everything a peer could have said in a session that is over."""
    server = world.server
    if server.stopped:
        return
    for name, device in world.simulation.devices.items():
        for session in {0, device.session - 1} - {device.session}:
            for event in _late_events(name, session, _TO_SERVER):
                before = freeze(server)
                assert server.handle(event, world.last_told(SERVER)) == []
                assert freeze(server) == before
            for event in _late_events(SERVER, session, _TO_DEVICE):
                before = freeze(device.machine)
                assert device.machine.handle(event, world.last_told(name)) == []
                assert freeze(device.machine) == before


def _late_events(sender: NodeId, session: int, messages: tuple[Message, ...]) -> Iterator[Event]:
    yield from (Received(sender, session, message) for message in messages)
    yield Disconnected(sender, session)


_DATA = Payload(PayloadId("ghost/0/1"), 10, 1.0)
_TO_SERVER: tuple[Message, ...] = (
    Join(0, 8, 1.0, 1.0),
    ActivationBatch(0, _DATA),
    ModelUpdate(0, 4, _DATA),
    Failed("too late", diverged=True),
)
_TO_DEVICE: tuple[Message, ...] = (
    Assignment("another plan", ProgramSpec("full"), 1),
    TurnOn(),
    HandIn(),
    GradientBatch(0, 0, _DATA),
    GlobalModel(0, 0.0, _DATA),
    Stop("not for you"),
)


@given(descriptions(methods=WITH_BARRIER, kinds=("cut", "restore")))
def test_an_update_that_is_handed_in_twice_counts_once(description: Description) -> None:
    laws.update_counts_once(description)


@given(calm(st.sampled_from([ROWS[name] for name in ROWS]).map(lambda row: lambda _: row())))
def test_nobody_starves(description: Description) -> None:
    laws.nobody_starves(description)


@settings(max_examples=20)
@given(calm(st.sampled_from(WITH_BARRIER).map(drawn_rows)))
def test_nobody_starves_where_some_are_drawn_for_each_round(description: Description) -> None:
    laws.nobody_starves(description)


@pytest.mark.parametrize("method", ROWS)
def test_a_join_in_a_run_that_is_over_is_turned_away(method: str) -> None:
    world = World(_unlucky_fleet(method))
    world.run()
    late = Received(NodeId("late"), 1, Join(0, 8, 1.0, 1.0))
    (answer,) = world.server.handle(late, world.simulation.now)
    assert "over" in str(answer)


def _unlucky_fleet(method: str) -> Description:
    options = Options(cap=2, credit_timeout=4.0, barrier_timeout=9.0, max_delay=2)
    return Description(
        ROWS[method](options),
        [Device(1.0, latency=0.25), Device(2.0), Device(8.0, 1064.0), Device(4.0, joins_at=6.0)],
        stop=StopRule(rounds=4),
        changes=[
            Change(2.0, NodeId("d2"), "bandwidth", 5000.0),
            Change(3.0, NodeId("d1"), "cut"),
            Change(7.5, NodeId("d1"), "restore"),
            Change(8.0, NodeId("d2"), "leave"),
            Change(12.0, NodeId("d2"), "return"),
            Change(14.0, NodeId("d3"), "hang"),
        ],
        evaluate_every=0.5,
    )


@pytest.mark.parametrize("method", ROWS)
def test_another_fleet_gives_another_digest(method: str) -> None:
    description = _unlucky_fleet(method)
    other = replace(description, server_speed=description.server_speed + 0.001)
    first, second = World(description), World(other)
    first.run()
    second.run()
    assert first.digest != second.digest
