"""An onlooker sees what a reader of the finished trace will see, a moment later."""

from __future__ import annotations

import json

import pytest

from fedoptima.analysis.fleet import DeviceState
from fedoptima.analysis.live_accounts import LiveAccounts
from fedoptima.analysis.saved_accounts import Unfit
from fedoptima.core.jobs import FullStep
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record
from tests.analysis.stories import A, B, connects, loads, planned, starts, usage, works

RUN = [
    *connects(0.0, A, B),
    planned(1.0),
    *loads(1.1, 1.2, A),
    *loads(1.3, 1.4, B),
    *works(1.4, 3.0, A),
    *works(1.5, 2.0, B),
    *works(2.1, 4.0, SERVER, FullStep(0)),
]


def mine(records: list[Record], node: str) -> list[Record]:
    return [record for record in records if record.node == node]


def observed(live: LiveAccounts, records: list[Record]) -> None:
    """The server's at once, then each device's in one piece: the order in which they come."""
    for record in mine(records, SERVER):
        live.observe(record)
    for device in (B, A):
        live.observe_device(mine(records, device))


def test_records_that_come_late_are_put_in_their_place() -> None:
    live = LiveAccounts()
    observed(live, RUN)
    live.advance(100.0)
    assert live.accounts.usage.usage() == usage(RUN)


def test_the_last_moment_is_waited_for() -> None:
    live = LiveAccounts()
    observed(live, RUN)
    live.advance(4.0)  # counts what happened until second 1
    assert live.accounts.course.now == 1.0
    live.advance(6.0)
    assert live.accounts.course.now == 3.0


def test_what_comes_later_than_that_is_counted_as_new() -> None:
    live = LiveAccounts()
    observed(live, RUN)
    live.advance(100.0)
    live.observe_device([starts(2.5, B, FullStep(1))])
    live.advance(100.0)
    assert live.accounts.course.now == 4.0  # time does not go back


def test_how_a_device_is_doing_is_told_at_once() -> None:
    live = LiveAccounts()
    observed(live, RUN)
    assert live.fleet.devices[A].state is DeviceState.TRAINING
    assert live.fleet.began == 1.0
    assert live.accounts.course.now == 0.0


def test_who_comes_in_the_middle_of_a_run_sees_as_much_as_the_others() -> None:
    before = [record for record in RUN if record.at < 2.0]
    live = LiveAccounts()
    live.catch_up(before)
    assert live.accounts.course.now == max(record.at for record in before)
    observed(live, [record for record in RUN if record.at >= 2.0])
    live.advance(100.0)
    assert live.accounts.usage.usage() == usage(RUN)
    assert live.fleet.devices[B].state is DeviceState.TRAINING


def test_an_onlooker_of_a_resumed_run_sees_what_was_seen_before() -> None:
    early = [record for record in RUN if record.at < 2.0]
    late = [record for record in RUN if record.at >= 2.0]
    live, again = LiveAccounts(), LiveAccounts()
    observed(live, early)
    live.advance(4.0)  # some are counted, and others wait
    saved = live.save()
    observed(live, late)  # what happens before it is written is not in it
    again.restore(json.loads(json.dumps(saved())))
    assert again.accounts.course.now == 1.0
    assert again.fleet.devices[A].state is DeviceState.TRAINING
    observed(again, late)
    for either in (live, again):
        either.advance(100.0)
    assert again.accounts.usage.usage() == live.accounts.usage.usage() == usage(RUN)


@pytest.mark.parametrize("saved", [None, {}, {"accounts": None}])
def test_a_checkpoint_without_live_accounts_says_so(saved: object) -> None:
    with pytest.raises(Unfit):
        LiveAccounts().restore(saved)


@pytest.mark.parametrize("part", ["fleet", "released", "waiting"])
def test_accounts_of_which_a_part_is_missing_change_nothing(part: str) -> None:
    live, again = LiveAccounts(), LiveAccounts()
    observed(live, RUN)
    live.advance(100.0)
    saved = live.save()()
    del saved[part]
    with pytest.raises(Unfit):
        again.restore(saved)
    again.catch_up(sorted(RUN, key=lambda record: record.at))
    assert again.accounts.save() == live.accounts.save(), "each record is counted once"
