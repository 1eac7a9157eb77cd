"""Laws that hold in every run, whatever the fleet, the method and the misfortunes.

`World` checks every machine's invariants, and its own books of the laws, after every event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.effects import Run
from fedoptima.core.events import Disconnected, Event, Received
from fedoptima.core.jobs import Merge
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
from fedoptima.core.shares import Shares
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.sim.faults import Change
from tests.support.fleets import descriptions
from tests.support.rows import CAPPED, ROWS, WITH_BARRIER, WITHOUT_BARRIER, Options
from tests.support.world import Description, Device, World

REASONS = ("rounds done", "epochs done", "seconds are over", "reached the target", "converged")
STEPS = st.sets(st.integers(1, 600), max_size=40)


@given(descriptions())
def test_every_run_in_which_somebody_is_left_ends_by_its_stop_rule(
    description: Description,
) -> None:
    world = World(description)
    outcome = world.run()
    assert not outcome.failed
    assert any(reason in outcome.reason for reason in REASONS)


@given(descriptions())
def test_the_same_description_gives_the_same_digest(description: Description) -> None:
    first, second = World(description), World(description)
    assert first.run() == second.run()
    assert first.digest == second.digest


@given(descriptions(), STEPS)
def test_saving_and_restoring_everything_changes_nothing_that_follows(
    description: Description, steps: set[int]
) -> None:
    whole, interrupted = World(description), World(description)
    assert whole.run() == interrupted.run(swap_at=steps)
    assert whole.digest == interrupted.digest


@pytest.mark.parametrize("method", ROWS)
def test_a_run_may_be_saved_and_restored_after_every_single_event(method: str) -> None:
    description = _unlucky_fleet(method)
    whole, interrupted = World(description), World(description)
    assert whole.run() == interrupted.run(swap_at=range(100_000))
    assert whole.digest == interrupted.digest


@given(descriptions(methods=CAPPED))
def test_the_cap_holds_at_every_instant(description: Description) -> None:
    world = World(description)
    world.run()
    assert description.cap is not None
    assert world.watch.peak <= description.cap


@given(descriptions(methods=WITHOUT_BARRIER, stay_hung=True))
def test_hung_devices_never_stop_the_others(description: Description) -> None:
    World(description).run()


@given(
    st.one_of(
        descriptions(methods=WITH_BARRIER, stay_hung=True, on_leave=("drop",)),
        descriptions(methods=WITH_BARRIER, stay_hung=True, kinds=("hang", "bandwidth")),
    )
)
def test_hung_devices_never_stop_the_others_at_a_barrier(description: Description) -> None:
    """Told to wait, it waits for one that has left, of course: here none does."""
    World(description).run()


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
    world = World(description)
    world.run()
    shares, trained, epochs = Shares(), dict[PayloadId, int](), 0.0
    for record in world.records:
        if record.node != SERVER:
            continue
        match record.event:
            case Received(device, _, Join(samples=samples)):
                shares.add(device, samples)
            case Disconnected(device):
                shares.remove(device)
            case Received(_, _, ModelUpdate() as update):
                trained[update.data.id] = update.trained
        for effect in record.effects:
            if isinstance(effect, Run) and isinstance(effect.job, Merge):
                parts = effect.job.parts
                epochs += sum(shares.epochs(p.device, trained.pop(p.data.id)) for p in parts)
    assert world.server.progress.epochs == pytest.approx(epochs)


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
        cap=options.cap if method in CAPPED else None,
        credit_timeout=options.credit_timeout,
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
