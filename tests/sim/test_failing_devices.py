"""Devices that fail, diverge or break the protocol: who is taken out, and what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedoptima.core.effects import Halt, Note
from fedoptima.core.errors import InvariantBroken, Stalled, TrainingDiverged
from fedoptima.core.events import Received, Rejected
from fedoptima.core.messages import ActivationBatch, Failed
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.sim import delivery
from fedoptima.sim.faults import Change, Churn
from fedoptima.sim.network import Envelope
from fedoptima.testing.world import Description, Device, World
from tests.support.bench import payload
from tests.support.rows import Options, fedasync, fedoptima, fl

D0, D1, D2 = NodeId("d0"), NodeId("d1"), NodeId("d2")


def test_a_peer_that_breaks_the_protocol_is_dropped_by_name_and_the_run_goes_on() -> None:
    run = World(Description(fedoptima(Options(cap=1)), [Device(), Device()]))
    run.watch.expect_drops()
    run.run_until(1.0)
    uninvited = Envelope(ActivationBatch(0, payload("d1/0/99", 10)), 1)
    delivery.post(run.simulation.state, D1, True, uninvited)
    run.run()
    (note,) = run.notes("peer dropped")
    assert note == Note("peer dropped", D1, "d1 sent activations without a turn-on")
    assert run.merged().keys() == {D0}


def test_a_diverged_device_ends_the_run_or_leaves_it() -> None:
    fleet = [Device(), Device(2.0, error=TrainingDiverged("the loss is not finite"), fails_at=3)]
    strict = World(Description(fedasync(), fleet)).run()
    assert strict.failed
    assert strict.reason == "d1: 'the loss is not finite'"
    tolerant = World(Description(fedasync(), fleet, drop_diverged=True))
    assert tolerant.run().reason == "3 rounds done"
    (failed,) = (r.at for r in tolerant.records if r.node == SERVER and "Failed" in str(r.event))
    later = [r for r in tolerant.records if r.at > failed]
    assert {r.node for r in later} == {SERVER, D0}


REFUSED = ValueError("expected more than 1 value per channel")


def test_a_job_that_fails_takes_its_device_out_and_the_run_goes_on() -> None:
    run = World(Description(fedasync(), [Device(), Device(error=REFUSED, fails_at=3)]))
    assert run.run().reason == "3 rounds done"
    (note,) = run.notes("device failed")
    assert note == Note("device failed", D1, f"ValueError: {REFUSED}")
    assert not run.simulation.devices[D1].connected


def test_churn_does_not_bring_back_a_device_that_has_failed() -> None:
    run = World(
        Description(
            fedasync(),
            [Device(), Device(error=REFUSED, fails_at=3)],
            stop=StopRule(hours=100.0 / 3600),
            churn=Churn(3, 5.0, 0.2, 500.0, 5000.0),
        )
    )
    run.run()
    assert len(run.notes("device failed")) == 1


def test_a_device_that_has_failed_can_be_started_again() -> None:
    run = World(
        Description(
            fedasync(),
            [Device(), Device(error=REFUSED, fails_at=3)],
            stop=StopRule(hours=100.0 / 3600),
            changes=[Change(60.0, D1, "return")],
        )
    )
    run.run()
    assert run.first_seen(D1, after=50.0) == 60.0
    assert len(run.notes("device failed")) == 2


def test_a_run_whose_devices_have_all_failed_says_why() -> None:
    run = World(Description(fedasync(), [Device(error=REFUSED), Device(error=REFUSED)]))
    with pytest.raises(Stalled, match=r"dropped: d0, d1: ValueError: expected more than 1"):
        run.run()


def test_a_job_that_fails_on_the_server_ends_the_run_with_its_message() -> None:
    run = World(Description(fl(), merge_error=ValueError("no such tensor")))
    outcome = run.run()
    assert outcome.failed
    assert outcome.reason == "ValueError: no such tensor"


def test_a_job_that_fails_with_the_updates_of_every_device_ends_the_run() -> None:
    run = World(Description(fedasync(), merge_error=ValueError("no such tensor")))
    run.watch.expect_drops()
    assert run.run() == Halt("d1: ValueError: no such tensor", failed=True)
    assert [note.about for note in run.notes("peer dropped")] == [D0]
    assert not run.simulation.devices[D0].connected


def test_a_bug_of_our_own_in_a_job_stops_the_run() -> None:
    run = World(Description(fedasync(), [Device(), Device(error=InvariantBroken("a bug"))]))
    with pytest.raises(InvariantBroken, match="a bug"):
        run.run()


def with_nan(**settings: object) -> World:
    description = Description(fedasync(), [Device(), Device(hands_in_nan=True)])
    run = World(replace(description, **settings))  # type: ignore[arg-type]
    run.watch.expect_drops()
    return run


def test_a_device_that_hands_in_nan_is_dropped_for_good_and_the_run_goes_on() -> None:
    run = with_nan(
        drop_diverged=True,
        stop=StopRule(hours=100.0 / 3600),
        churn=Churn(3, 5.0, 0.2, 500.0, 5000.0),
    )
    assert not run.run().failed
    assert run.notes("peer dropped") == [Note("peer dropped", D1, "the update is NaN")]
    assert run.merged().keys() == {D0}
    dropped = next(r.at for r in run.records if isinstance(r.event, Rejected))
    assert {r.node for r in run.records if r.at > dropped} == {SERVER, D0}


def test_a_device_that_hands_in_nan_ends_a_run_that_is_to_end_with_a_divergence() -> None:
    run = with_nan()
    assert run.run() == Halt("d1: the update is NaN", failed=True)
    assert run.notes("peer dropped") == [Note("peer dropped", D1, "the update is NaN")]


def test_what_was_on_its_way_at_a_checkpoint_is_refused_after_it() -> None:
    run = with_nan(drop_diverged=True)
    run.run(swap_at=range(1, 1000))
    assert run.notes("peer dropped") == [Note("peer dropped", D1, "the update is NaN")]


def test_a_device_that_drops_its_server_names_it() -> None:
    run = World(Description(fedasync(), [Device(), Device()]))
    run.watch.expect_drops()
    run.run_until(1.0)
    run.simulation._tell(D1, Received(SERVER, 1, Failed("out of order")))
    run.run()
    (note,) = run.notes("peer dropped")
    assert note == Note("peer dropped", SERVER, "a server does not send Failed")
    assert run.merged().keys() == {D0}
