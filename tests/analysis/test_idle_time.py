"""Busy, waiting for the other side, waiting for a slower device: known beforehand, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedoptima.analysis.idle_time import Usage, UsageAccount
from fedoptima.core.effects import Halt, Run
from fedoptima.core.events import Gap, JobDone
from fedoptima.core.jobs import Merge, Rebase, ReusedStep
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record
from tests.analysis.stories import (
    DATA,
    A,
    B,
    answers,
    connects,
    ends,
    halts,
    hands_in,
    loads,
    loses,
    merge_of,
    plans,
    prepares,
    starts,
    told,
    usage,
    works,
)
from tests.experiments.runs import FLEET, run, set_up


def start() -> list[Record]:
    """Everybody is there at 0, the plan is ready at 5, a model is loaded by 7."""
    records = [*connects(0.0, A, B), *plans(0.0, 5.0)]
    for device in (A, B):
        records += [*prepares(5.5, 6.0, device), *loads(6.0, 7.0, device)]
    return records


def test_a_device_killed_before_it_told_anything_has_no_account() -> None:
    """In a real run a device's records come later than what it does."""
    merge = merge_of(A)
    use = usage([*plans(0.0, 5.0), hands_in(6.0, A, Run(1, merge)), ends(7.0, SERVER, merge)])
    assert set(use) == {SERVER}


def test_start_up_is_no_part_of_the_run() -> None:
    use = usage([*start(), *works(7.0, 9.0, A), *works(7.0, 9.0, B), halts(9.0)])
    assert use[SERVER] == Usage(busy=0.0, idle_1=4.0, idle_2=0.0)  # from the plan to the end
    assert use[A] == Usage(busy=3.0, idle_1=0.0, idle_2=0.0)  # from loading


def test_a_barrier_is_type_two_until_the_last_arrival_and_type_one_after() -> None:
    merge = merge_of(A, B)
    use = usage(
        [
            *start(),
            *works(7.0, 9.0, A),
            hands_in(9.5, A),
            *works(7.0, 14.0, B),
            hands_in(15.0, B, Run(1, merge)),
            ends(16.0, SERVER, merge, *answers(A, B)),
            *loads(17.0, 18.0, A),
            *loads(17.0, 18.0, B),
            halts(18.0),
        ]
    )
    # A: works 6-9 and 17-18. Up 9-9.5, waits for B 9.5-15, merge and down 15-17.
    assert use[A] == Usage(busy=4.0, idle_1=2.5, idle_2=5.5)
    assert use[B] == Usage(busy=9.0, idle_1=3.0, idle_2=0.0)
    assert use[SERVER] == Usage(busy=1.0, idle_1=12.0, idle_2=0.0)


def test_who_was_answered_at_once_has_waited_for_nobody() -> None:
    merge = merge_of(A, B)  # a buffer of two: A was sent on its way when it handed in
    use = usage(
        [
            *start(),
            *works(7.0, 9.0, A),
            hands_in(9.0, A, *answers(A)),
            *works(10.0, 14.0, A),
            *works(7.0, 14.0, B),
            hands_in(14.0, B, Run(1, merge)),
            ends(14.0, SERVER, merge, *answers(B)),
            halts(14.0),
        ]
    )
    assert use[A] == Usage(busy=7.0, idle_1=1.0, idle_2=0.0)


def test_an_update_that_waits_in_the_servers_queue_is_type_one() -> None:
    merge = merge_of(A)
    use = usage(
        [
            *start(),
            *works(7.0, 9.0, A),
            hands_in(9.0, A),
            starts(12.0, SERVER, merge),
            ends(13.0, SERVER, merge, *answers(A)),
            halts(13.0),
        ]
    )
    assert use[A] == Usage(busy=3.0, idle_1=4.0, idle_2=0.0)


def test_absence_is_no_part_of_the_run_until_a_model_is_loaded_again() -> None:
    use = usage(
        [
            *start(),
            starts(7.0, A, merge_of(A)),  # it dies at work
            *loses(9.0, A, alive=False),
            *connects(20.0, A),
            *prepares(21.0, 21.5, A),
            *loads(22.0, 23.0, A),
            halts(25.0),
        ]
    )
    assert use[A] == Usage(busy=4.0, idle_1=2.0, idle_2=0.0)


def test_a_device_that_is_back_and_goes_on_from_where_it_was_counts_from_its_next_model_on() -> (
    None
):
    use = usage(
        [
            *start(),
            *works(7.0, 8.0, A),
            *loses(9.0, A, alive=True),
            *connects(20.0, A),
            *works(22.0, 23.0, A, Rebase(DATA, 0.0)),
            *works(23.0, 26.0, A),
            halts(27.0),
        ]
    )
    assert use[A] == Usage(busy=6.0, idle_1=2.0, idle_2=0.0)


def test_a_step_on_a_batch_again_is_told_apart_after_a_gap_too() -> None:
    step = ReusedStep(A, 1, 0, DATA, 0.0)
    gap = Gap(3, 6.0, (), Run(1, step))
    use = usage([*plans(0.0, 5.0), told(8.0, SERVER, gap), ends(10.0, SERVER, step), halts(10.0)])
    assert use[SERVER] == Usage(busy=0.0, idle_1=3.0, idle_2=0.0, reused=2.0)


def test_a_device_that_trains_offline_is_busy_and_not_idle_once_it_is_done() -> None:
    use = usage(
        [
            *start(),
            starts(7.0, A, merge_of(A)),
            *loses(9.0, A, alive=True),
            ends(12.0, A, merge_of(A)),
            *connects(20.0, A),
            halts(21.0),
        ]
    )
    assert use[A] == Usage(busy=6.0, idle_1=1.0, idle_2=0.0)


def test_who_is_back_and_has_no_model_yet_does_not_wait_for_others() -> None:
    merge = merge_of(A, B)
    use = usage(
        [
            *start(),
            *works(7.0, 9.0, A),
            hands_in(9.0, A),
            *loses(12.0, A, alive=True),
            *connects(20.0, A),
            hands_in(20.0, A),
            hands_in(25.0, B, Run(1, merge)),
            ends(25.5, SERVER, merge, *answers(A, B)),
            *loads(26.0, 27.0, A),
            halts(27.0),
        ]
    )
    assert use[A] == Usage(busy=4.0, idle_1=3.0, idle_2=0.0)


def test_nothing_counts_after_the_end() -> None:
    use = usage([*start(), starts(7.0, A, merge_of(A)), halts(9.0), ends(50.0, A, merge_of(A))])
    assert use[A].busy == 3.0
    assert use[SERVER].span == 4.0


def test_asking_on_the_way_changes_nothing() -> None:
    records: list[Record] = []
    set_up(records).simulation.run()
    asked, quiet = UsageAccount(), UsageAccount()
    for record in records:
        asked.observe(record)
        quiet.observe(record)
        asked.usage()
    for node, use in quiet.usage().items():
        assert asked.usage()[node].busy == pytest.approx(use.busy)
        assert asked.usage()[node].idle_1 == pytest.approx(use.idle_1)
        assert asked.usage()[node].idle_2 == pytest.approx(use.idle_2)


def waits_by_hand(records: list[Record]) -> dict[str, float]:
    """FL's Type II: at every merge, the last arrival minus one's own."""
    arrived: dict[str, float] = {}
    waits: dict[str, float] = {}
    for record in records:
        message = getattr(record.event, "message", None)
        if record.node == SERVER and isinstance(message, ModelUpdate):
            arrived[record.event.sender] = record.at  # type: ignore[union-attr]
        for effect in record.effects:
            if isinstance(effect, Run) and isinstance(effect.job, Merge):
                last = max(arrived.values())
                for part in effect.job.parts:
                    waits[part.device] = waits.get(part.device, 0.0) + last - arrived[part.device]
                arrived.clear()
    return waits


def test_fls_type_two_is_the_last_arrival_minus_ones_own() -> None:
    records: list[Record] = []
    set_up(records, method={"name": "fl"}).simulation.run()
    waits = waits_by_hand(records)
    found = usage(records)
    assert waits["slow"] == 0.0
    assert waits["fast"] > waits["middle"] > 0.0
    for device, seconds in waits.items():
        assert found[device].idle_2 == pytest.approx(seconds)  # type: ignore[index]


def test_fedoptima_never_waits_for_a_slower_device() -> None:
    result = run(dry=True)
    assert all(use.idle_2 == 0.0 for use in result.usage.values())


@pytest.mark.parametrize("method", ["fedoptima", "fl"])
def test_busy_and_idle_are_all_of_a_stable_run(method: str) -> None:
    records: list[Record] = []
    set_up(records, method={"name": method}).simulation.run()
    began = next(r.at for r in records if r.node == SERVER and isinstance(r.event, JobDone))
    ended = next(r.at for r in records if any(isinstance(e, Halt) for e in r.effects))
    found = usage(records)
    assert found[SERVER].span == pytest.approx(ended - began)
    for device in FLEET["devices"]:  # type: ignore[attr-defined]
        first = next(
            r.at for r in records if r.node == device["name"] and "LoadModel" in str(r.effects)
        )
        assert found[device["name"]].span == pytest.approx(ended - first)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 1000),
    method=st.sampled_from(
        [
            {"name": "fedoptima"},
            {"name": "fl"},
            {"name": "fl", "on_leave": "wait"},
            {"name": "fl", "barrier_timeout": 0.05},
            {"name": "fedoptima", "auxiliary": "none"},
            {"name": "fedoptima", "activation_cap": 1},
        ]
    ),
    every=st.sampled_from([0.02, 0.07, 0.3]),
    leave=st.sampled_from([0.1, 0.5]),
)
def test_no_time_is_negative_or_counted_twice_whatever_the_devices_do(
    seed: int, method: dict[str, object], every: float, leave: float
) -> None:
    churn = {"every": every, "leave_probability": leave, "mbps": [0.5, 3.0]}
    result = run(
        dry=True,
        seed=seed,
        method=method,
        fleet={**FLEET, "churn": churn},
        stop={"hours": 2 / 3600},
        epochs=1.5,
    )
    for use in result.usage.values():
        assert use.busy >= 0
        assert use.idle_1 >= 0
        assert use.idle_2 >= 0
        assert 0 <= use.utilisation <= 1
        assert use.span <= result.seconds + 1e-9
        assert use.idle == use.idle_1 + use.idle_2
    assert result.usage[SERVER].span == pytest.approx(result.seconds)
    assert result.usage[SERVER].idle_2 == 0.0
