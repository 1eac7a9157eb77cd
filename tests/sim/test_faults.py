from __future__ import annotations

from itertools import pairwise

import pytest

from fedoptima.core.errors import Stalled
from fedoptima.core.events import Connected, Received
from fedoptima.core.jobs import FullStep, Merge
from fedoptima.core.messages import Join
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.sim.faults import Change, ChangeKind, Churn
from fedoptima.testing.world import Description, Device, World
from tests.support.rows import ROWS, Options, fedasync, fl

FLEET = {NodeId(f"d{i}"): True for i in range(20)}
D0, D1, D2 = NodeId("d0"), NodeId("d1"), NodeId("d2")


def churn(probability: float, seed: int = 1) -> Churn:
    return Churn(seed, 600.0, probability, 25.0, 50.0)


def kinds(ticks: int, probability: float, *, present: bool) -> list[ChangeKind]:
    fleet = dict.fromkeys(FLEET, present)
    return [c.kind for t in range(1, ticks + 1) for c in churn(probability).changes(t, fleet)]


# ---- the paper's unstable environment ----------------------------------------------------------


def test_a_present_device_leaves_with_probability_p_or_gets_a_bandwidth() -> None:
    happened = kinds(200, 0.3, present=True)
    assert len(happened) == 200 * 20  # one thing each
    assert set(happened) == {"leave", "bandwidth"}
    assert abs(happened.count("leave") / len(happened) - 0.3) < 0.03


def test_an_absent_device_returns_with_probability_one_minus_p() -> None:
    happened = kinds(200, 0.3, present=False)
    assert "leave" not in happened
    assert abs(happened.count("return") / (200 * 20) - 0.7) < 0.03


def test_at_probability_zero_nobody_ever_leaves() -> None:
    assert set(kinds(50, 0.0, present=True)) == {"bandwidth"}


def test_bandwidths_are_spread_over_the_whole_range() -> None:
    drawn = [
        change.bytes_per_second
        for tick in range(1, 100)
        for change in churn(0.0).changes(tick, FLEET)
    ]
    assert all(25 <= value <= 50 for value in drawn)
    assert abs(sum(drawn) / len(drawn) - 37.5) < 0.5
    assert min(drawn) < 26
    assert max(drawn) > 49


def test_what_happens_depends_on_the_seed_the_tick_and_the_device_alone() -> None:
    first, again = (list(churn(0.5).changes(7, FLEET)) for _ in range(2))
    assert first == again
    assert first != list(churn(0.5, seed=2).changes(7, FLEET))
    alone = list(churn(0.5).changes(7, {D2: True}))
    assert alone == [change for change in first if change.device == D2]


def test_changes_are_due_at_their_tick() -> None:
    assert {change.at for change in churn(0.5).changes(3, FLEET)} == {1800.0}


def test_a_run_in_the_unstable_environment_ends_and_is_the_same_again() -> None:
    for name, row in ROWS.items():
        description = Description(
            row(Options(credit_timeout=5.0)),
            [Device(1.0), Device(2.0), Device(4.0), Device(8.0)],
            stop=StopRule(hours=100.0 / 3600),
            churn=Churn(3, 7.0, 0.4, 500.0, 5000.0),
        )
        first, second = World(description), World(description)
        first.run()
        second.run()
        assert first.digest == second.digest
        assert len(first.sent(Join)) > 8, f"{name}: hardly anybody came back"


def test_churn_does_not_bring_a_device_before_it_is_to_join() -> None:
    run = World(
        Description(
            fedasync(),
            [Device(), Device(joins_at=50.0)],
            stop=StopRule(hours=100.0 / 3600),
            churn=Churn(3, 5.0, 0.1, 500.0, 5000.0),
        )
    )
    run.run()
    assert run.first_seen(D1) == 50.0


def test_churn_does_not_bring_back_a_device_that_the_script_sent_away() -> None:
    run = World(
        Description(
            fedasync(),
            [Device(), Device()],
            stop=StopRule(hours=100.0 / 3600),
            changes=[Change(12.0, D1, "leave"), Change(60.0, D1, "return")],
            churn=Churn(3, 5.0, 0.1, 500.0, 5000.0),
        )
    )
    run.run()
    assert run.first_seen(D1, after=12.1) == 60.0


def test_churn_ends_with_the_last_device() -> None:
    run = World(
        Description(
            fedasync(),
            [Device()],
            stop=StopRule(rounds=1000),
            changes=[Change(12.0, D0, "leave")],
            churn=Churn(3, 5.0, 0.1, 500.0, 5000.0),
        )
    )
    with pytest.raises(Stalled, match="left for good"):
        run.run()


# ---- scripted changes --------------------------------------------------------------------------


def world(*changes: Change, method: str = "fedasync", seconds: float = 40.0) -> World:
    description = Description(
        ROWS[method](Options(cap=1, credit_timeout=5.0)),
        [Device(), Device(2.0), Device(4.0)],
        stop=StopRule(hours=seconds / 3600),
        changes=changes,
    )
    return World(description)


def incarnations(run: World) -> list[int]:
    """Of everybody who joined, in order."""
    return [send.message.incarnation for send in run.sent(Join) if isinstance(send.message, Join)]


def test_a_device_that_left_computes_nothing_and_returns_as_a_new_process() -> None:
    run = world(Change(10.0, D1, "leave"), Change(20.0, D1, "return"))
    run.run()
    away = [r for r in run.records if r.node == D1 and 10.0 < r.at < 20.0]
    assert away == []
    assert incarnations(run) == [0, 0, 0, 1]


def test_a_device_that_was_cut_off_goes_on_computing_in_the_same_process() -> None:
    run = world(Change(10.0, D0, "cut"), Change(20.0, D0, "restore"))
    run.run()
    away = [r for r in run.records if r.node == D0 and 10.0 < r.at < 20.0]
    assert away
    assert incarnations(run) == [0, 0, 0, 0]


def test_a_returning_device_does_not_repeat_the_steps_it_has_done() -> None:
    run = world(Change(15.0, D2, "leave"), Change(16.0, D2, "return"))
    run.run()
    steps = [r.job.seq for r in run.jobs(D2, FullStep) if isinstance(r.job, FullStep)]
    assert steps == sorted(steps)
    assert len(steps) - len(set(steps)) <= 1  # the one it was in when it left


def test_a_hung_device_is_silent_until_its_process_starts_anew() -> None:
    run = world(
        Change(10.0, D1, "hang"),
        Change(12.0, D1, "cut"),
        Change(14.0, D1, "restore"),
        Change(20.0, D1, "leave"),
        Change(22.0, D1, "return"),
    )
    run.run()
    silent = [r for r in run.records if r.node == D1 and 10.0 < r.at < 22.0]
    assert silent == []
    connections = [
        r.event.session
        for r in run.records
        if r.node == SERVER and isinstance(r.event, Connected) and r.event.peer == D1
    ]
    assert connections == [1, 2]  # none for the restored wire


def test_devices_that_hang_with_the_only_credit_cost_no_more_than_the_timeout() -> None:
    run = world(Change(3.0, D0, "hang"), Change(4.0, D1, "hang"), method="fedoptima", seconds=60.0)
    run.run()
    late = [r.at for r in run.records if r.node == SERVER and "ServerStep" in str(r.effects)]
    gaps = [after - before for before, after in pairwise(late)]
    assert max(gaps) < 2 * 5.0 + 4.0  # two credits run out, and a batch takes its time
    assert run.steps_served()[D2] > 10


def test_hung_devices_stop_a_barrier_only_without_a_timeout() -> None:
    def merges(timeout: float | None) -> int:
        description = Description(
            fl(Options(barrier_timeout=timeout)),
            [Device(), Device(2.0)],
            stop=StopRule(hours=100.0 / 3600),
            changes=[Change(1.0, D0, "hang")],
        )
        run = World(description)
        run.run()
        return len(run.jobs(SERVER, Merge))

    assert merges(None) == 0
    assert merges(10.0) >= 5


def test_what_was_on_its_way_when_the_connection_went_does_not_delay_the_next_one() -> None:
    description = Description(
        fedasync(),
        [Device(8.0, bytes_per_second=64.0)],  # a word takes a second, a model many
        stop=StopRule(hours=60.0 / 3600),
        changes=[Change(30.0, D0, "cut"), Change(30.0, D0, "restore")],
    )
    run = World(description)
    run.run()
    words = [(r.at, r.event.message) for r in run.records if isinstance(r.event, Received)]
    assert [at for at, word in words if isinstance(word, Join)] == [1.0, 31.0]


def test_a_bandwidth_that_falls_slows_the_device_down() -> None:
    def updates(*changes: Change) -> int:
        run = world(*changes)
        run.run()
        return run.merged()[D2]

    assert updates(Change(5.0, D2, "bandwidth", 200.0)) < updates()


def test_a_change_that_changes_nothing_changes_nothing() -> None:
    quiet, noisy = (
        world(),
        world(Change(3.0, D0, "return"), Change(4.0, D0, "restore"), Change(4.0, D1, "restore")),
    )
    quiet.run()
    noisy.run()
    assert quiet.digest == noisy.digest
