"""Records of the server that could not be written: replay goes on from the core after them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.fleet import FleetAccount
from fedoptima.core.effects import Run
from fedoptima.core.events import Gap, JobDone, Received
from fedoptima.core.serialization import freeze
from fedoptima.core.types import SERVER
from fedoptima.trace.gap import GapCount
from fedoptima.trace.line import encode
from fedoptima.trace.record import Record
from tests.support.rows import ROWS
from tests.verification.traces import first_difference, fresh_server, replay, trace_of


def with_gap(name: str, records: list[Record], first: int, last: int, *, core: bool = True) -> int:
    """Replaces the server's records between two places; returns where the gap is."""
    server, count, running = fresh_server(name)(), GapCount(), None
    for place, record in enumerate(records[:last]):
        if record.node != SERVER:
            continue
        server.handle(record.event, record.at)  # type: ignore[arg-type]
        if isinstance(record.event, JobDone):
            running = None
        running = next((e for e in record.effects if isinstance(e, Run)), running)
        if place >= first:
            count.add([record.to_line()])
    text = encode(freeze(server)) if core else ""
    gap = count.gap(running if core else None, text)
    kept = [record for record in records[first:last] if record.node != SERVER]
    at = records[last - 1].at
    records[first:last] = [*kept, Record.from_line(Record(at, SERVER, gap, []).to_line())]
    return first + len(kept)


@pytest.mark.parametrize("name", ROWS)
def test_a_run_with_a_gap_replays_before_and_after_it(name: str) -> None:
    whole = trace_of(name)
    for first in range(1, len(whole) - 30, len(whole) // 7):
        records = list(whole)
        last = min(len(whole), first + 60)
        place = with_gap(name, records, first, last)
        verdict = replay(name, records)
        assert verdict.difference is None, verdict.difference
        (gap,) = verdict.gaps
        assert gap.verified_after
        assert gap.number == place + 1


def test_what_is_wrong_after_a_gap_is_found() -> None:
    records = list(trace_of("fedoptima"))
    place = with_gap("fedoptima", records, 50, 110)
    wrong = next(
        n
        for n in range(place + 1, len(records))
        if records[n].node == SERVER and records[n].effects
    )
    records[wrong] = replace(records[wrong], effects=[])
    found = first_difference("fedoptima", records)
    assert found is not None
    assert found.number == wrong + 1


def test_a_message_that_was_never_sent_is_found_after_a_gap() -> None:
    """Which messages the gap stands for is not known, but how many: those after it must fit."""
    records = list(trace_of("fedoptima"))
    place = with_gap("fedoptima", records, 50, 110)
    gap = records[place].event
    assert isinstance(gap, Gap)
    fewer = tuple((lane, count - (lane[3] and lane[2])) for lane, count in gap.mail)
    assert fewer != gap.mail
    records[place] = replace(records[place], event=replace(gap, mail=fewer))
    found = first_difference("fedoptima", records)
    assert found is not None
    assert found.what.startswith("received")


def test_after_a_gap_without_a_core_the_servers_own_decisions_are_not_compared() -> None:
    records = list(trace_of("fedoptima"))
    place = with_gap("fedoptima", records, 50, 110, core=False)
    wrong = next(
        n
        for n in range(place + 1, len(records))
        if records[n].node == SERVER and isinstance(records[n].event, Received)
    )
    verdict = replay("fedoptima", records[:wrong])
    assert verdict.difference is None
    (gap,) = verdict.gaps
    assert not gap.verified_after
    assert "up to there" in str(gap)


@pytest.mark.parametrize("name", ROWS)
def test_a_run_with_a_gap_can_be_added_up(name: str) -> None:
    whole, all_accounts = trace_of(name), Accounts()
    for record in whole:
        all_accounts.observe(record)
    whole_summary = all_accounts.summary()
    for first in range(1, len(whole) - 30, len(whole) // 7):
        records = list(whole)
        with_gap(name, records, first, min(len(whole), first + 60))
        accounts, fleet = Accounts(), FleetAccount()
        for record in records:
            accounts.observe(record)
            fleet.observe(record)
        found = accounts.summary()
        assert (found.versions, fleet.version) == (whole_summary.versions,) * 2
        assert found.epochs <= whole_summary.epochs + 1e-9
