"""Used, wasted and under way: small runs by hand, whose samples can be counted on paper."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.balance import BalanceAccount
from fedoptima.analysis.work import Work, WorkAccount
from fedoptima.core.effects import Effect, Run, Send
from fedoptima.core.events import Connected, JobDone, JobFailed, Received, TimerFired
from fedoptima.core.jobs import FullStep, Merge
from fedoptima.core.messages import Assignment, Join, ProgramSpec
from fedoptima.core.types import SERVER, NodeId
from fedoptima.testing.world import Description, World
from fedoptima.trace.record import Record
from tests.analysis.stories import (
    DATA,
    A,
    B,
    answers,
    batch,
    joins,
    loses,
    merge,
    merged,
    planned,
    refusal,
    step,
    stepped,
    told,
    update,
)
from tests.experiments.runs import run
from tests.support.fleets import descriptions


def trains(at: float, device: NodeId, samples: int) -> Record:
    return told(at, device, JobDone(1, FullStep(0), DATA, samples=samples))


def rejoins(at: float, device: NodeId, *, training: bool = False) -> list[Record]:
    join = Join(1, 8, 1.0, 1.0, training=training)
    return [
        told(at, SERVER, Connected(device, 2)),
        told(at, SERVER, Received(device, 2, join)),
    ]


def assigns(kind: str) -> Effect:
    return Send(A, 1, Assignment("", ProgramSpec(kind), 1))


def work_of(*records: Record) -> Work:
    balance = BalanceAccount()
    account = WorkAccount(balance)
    for record in records:
        balance.observe(record)
        if record.node == SERVER:
            account.observe(record)
    return account.work()


BEGUN = [*joins(0.0, A, B), planned(0.0)]
BOTH = merge((A, "a", 0.5), (B, "b", 0.5))


def test_a_round_is_used_when_its_updates_are_merged() -> None:
    story = [
        *BEGUN,
        trains(1.0, A, 8),
        trains(1.0, B, 8),
        update(2.0, A, "a"),
        update(3.0, B, "b", Run(1, BOTH)),
    ]
    assert work_of(*story) == Work(used=0, wasted=0, under_way=16, useful=0.0)
    story.append(merged(4.0, BOTH, *answers(A, B)))
    assert work_of(*story) == Work(used=16, wasted=0, under_way=0, useful=16.0)


def test_what_is_under_way_counts_as_the_work_before_it_did() -> None:
    story = [
        *BEGUN,
        trains(1.0, A, 8),
        update(2.0, A, "a", Run(1, merge((A, "a", 1.0)))),
        merged(3.0, merge((A, "a", 1.0)), *answers(A)),
        trains(4.0, B, 24),
        update(5.0, B, "b", refusal(B), *answers(B), trained=24),
        trains(6.0, A, 4),  # a quarter of what was decided on so far was used
    ]
    assert work_of(*story) == Work(used=8, wasted=24, under_way=4, useful=9.0)


def test_an_update_in_a_buffer_is_used_because_it_outlives_its_device() -> None:
    story = [*BEGUN, trains(1.0, A, 8), update(2.0, A, "a", *answers(A)), *loses(3.0, A, alive=0)]
    assert work_of(*story, *rejoins(4.0, A)).used == 8


def test_a_device_that_comes_back_without_its_round_has_wasted_it() -> None:
    story = [*BEGUN, trains(1.0, A, 8), trains(1.0, B, 8), *loses(2.0, A, alive=False)]
    assert work_of(*story).wasted == 0  # it may come back with it
    assert work_of(*story, *rejoins(3.0, A, training=True)).wasted == 0
    assert work_of(*story, *rejoins(3.0, A)) == Work(0, 8, 8, 0.0)


def test_an_update_whose_device_left_is_used_by_the_next_merge_or_wasted() -> None:
    story = [
        *BEGUN,
        trains(1.0, A, 8),
        trains(1.0, B, 8),
        update(2.0, A, "a"),
        *loses(2.5, A, alive=False),
        *rejoins(3.0, A),
    ]
    assert work_of(*story).wasted == 0
    kept = [update(4.0, B, "b", Run(1, BOTH)), merged(5.0, BOTH)]
    assert work_of(*story, *kept) == Work(16, 0, 0, 16.0)
    alone = merge((B, "b", 1.0))
    dropped = [update(4.0, B, "b", Run(1, alone)), merged(5.0, alone)]
    assert work_of(*story, *dropped) == Work(8, 8, 0, 8.0)
    repeated = told(4.0, SERVER, TimerFired("barrier"), *answers(A))
    assert work_of(*story, repeated).wasted == 8  # it trains the same round again


def test_a_merge_that_fails_has_used_nothing() -> None:
    one = merge((A, "a", 1.0))
    story = [*BEGUN, trains(1.0, A, 8), update(2.0, A, "a", Run(1, one))]
    assert work_of(*story, told(3.0, SERVER, JobFailed(1, one, "no"))) == Work(0, 8, 0, 0.0)


def test_with_a_loss_of_its_own_a_devices_samples_are_used_where_the_server_trains() -> None:
    one: Merge = merge((A, "a", 1.0))
    story = [
        *joins(0.0, A, B),
        told(0.0, SERVER, Received(A, 1, Join(0, 8, 1.0, 1.0)), assigns("auxiliary")),
        planned(0.0),
        trains(1.0, A, 12),
        batch(1.0, A, 0, 10, Run(1, step(A, 0))),
        stepped(2.0, step(A, 0), samples=4),
        update(3.0, A, "a", Run(2, one), trained=12),
        merged(4.0, one, *answers(A)),
    ]
    assert work_of(*story) == Work(used=4, wasted=0, under_way=0, useful=4.0)
    lost = [trains(5.0, A, 6), *loses(6.0, A, alive=False), *rejoins(7.0, A)]
    assert work_of(*story, *lost) == Work(used=4, wasted=6, under_way=0, useful=4.0)


class Watched(World):
    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.accounts = Accounts()

    def _observe(self, record: Record) -> None:
        super()._observe(record)
        self.accounts.observe(record)


@settings(max_examples=30)
@given(description=descriptions())
def test_no_sample_is_counted_twice_whatever_happens(description: Description) -> None:
    world = Watched(description)
    world.run()
    summary = world.accounts.summary()
    work = summary.work
    assert min(work.used, work.wasted, work.under_way) >= 0
    assert work.used <= work.useful <= max(summary.device_samples, summary.server_samples)
    if world.server.training._program.kind != "auxiliary":
        assert work.used + work.wasted + work.under_way == summary.device_samples


@pytest.mark.parametrize("method", ["fl", "splitfed", "pipar", "fedasync", "fedbuff", "oafl"])
def test_in_a_stable_run_every_sample_of_a_baseline_is_useful(method: str) -> None:
    summary = run(dry=True, method=method).summary
    assert summary.work.wasted == 0
    assert summary.useful_throughput == pytest.approx(summary.throughput.device)


def test_fedoptimas_useful_samples_are_its_servers() -> None:
    result = run(dry=True)
    assert result.useful_samples == result.server_samples > 0
