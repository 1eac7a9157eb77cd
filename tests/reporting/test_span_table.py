"""Spans as a table, and a trace in brief: the numbers of the accounts, once more."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

import pytest

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.overview import Overview, OverviewAccount
from fedoptima.analysis.spans import Kind, Span, SpanAccount
from fedoptima.core.types import SERVER
from fedoptima.reporting.trace_export import COLUMNS, CsvWriter
from fedoptima.trace.record import Record
from tests.analysis.span_stories import spans_of
from tests.analysis.stories import A, B, connects, halts, loads, plans, works
from tests.verification.traces import trace_of

METHODS = ["fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl"]


def overview_of(records: Sequence[Record]) -> Overview:
    accounts = Accounts()
    account, spans = OverviewAccount(accounts), SpanAccount(accounts.usage)
    for record in records:
        accounts.observe(record)
        account.observe(record, spans.observe(record))
    account.add(spans.finish())
    return account.overview()


def test_a_line_is_a_span() -> None:
    file, spans = io.StringIO(), spans_of(trace_of("splitfed"))
    writer = CsvWriter(file)
    writer.add(spans)
    assert writer.lines == len(spans)
    file.seek(0)
    lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    for line, span in zip(lines, spans, strict=True):
        assert (line["node"], line["kind"], line["what"]) == (span.node, span.kind, span.what)
        assert float(line["start"]) == pytest.approx(span.start, abs=1e-9)
        assert float(line["end"]) == pytest.approx(span.end, abs=1e-9)
        assert (line["peer"], line["bytes"]) == (span.peer, str(span.nbytes or ""))


def test_names_with_commas_stay_one_column() -> None:
    file = io.StringIO()
    CsvWriter(file).add([Span(A, Kind.SEND, 0.0, 1.5, "TurnOn", 'a, "b"', 64)])
    assert file.getvalue().splitlines()[1] == 'a,send,TurnOn,0.0,1.5,"a, ""b""",64'


@pytest.mark.parametrize("method", METHODS)
def test_the_overview_has_the_numbers_of_the_accounts(method: str) -> None:
    records, accounts = trace_of(method), Accounts()
    for record in records:
        accounts.observe(record)
    summary, overview = accounts.summary(), overview_of(records)
    assert overview.records == len(records) == sum(overview.events.values())
    assert overview.seconds == summary.seconds
    assert {name: line.usage for name, line in overview.nodes.items()} == dict(summary.usage)
    assert next(iter(overview.nodes)) == SERVER
    server, *devices = overview.nodes.values()
    assert server.bytes_received == summary.traffic.up.total
    assert server.bytes_sent == summary.traffic.down.total
    assert sum(line.bytes_sent for line in devices) == summary.traffic.up.total
    assert sum(line.bytes_received for line in devices) == summary.traffic.down.total
    assert sum(line.batches for line in devices) == server.batches
    done = sum(count for name, count in overview.events.items() if name.startswith("JobDone"))
    assert sum(line.jobs for line in overview.nodes.values()) == done


def test_the_longest_waits_come_first_and_say_since_when() -> None:
    records = [
        *connects(0.0, A, B),
        *plans(0.0, 5.0),
        *loads(6.0, 7.0, A),
        *works(17.0, 18.0, A),  # after a wait of 10 s
        *works(20.0, 21.0, A),  # of 2 s
        halts(21.5),
    ]
    waits = [(w.node, w.kind, w.start, w.seconds) for w in overview_of(records).waits]
    assert waits == [
        (SERVER, Kind.IDLE_1, 0.0, 16.5),
        (A, Kind.IDLE_1, 2.0, 10.0),
        (A, Kind.IDLE_1, 13.0, 2.0),
        (A, Kind.IDLE_1, 16.0, 0.5),
    ]


def test_only_the_longest_waits_are_kept() -> None:
    records = trace_of("pipar")
    longest = sorted(
        (s.end - s.start for s in spans_of(records) if s.kind in (Kind.IDLE_1, Kind.IDLE_2)),
        reverse=True,
    )
    waits = [wait.seconds for wait in overview_of(records).waits]
    assert len(longest) > len(waits) == 10
    assert waits == longest[:10]


def test_events_are_told_by_what_they_are_about() -> None:
    events = overview_of(trace_of("fedoptima")).events
    assert {"Received ActivationBatch", "JobDone ServerStep", "Connected", "Evaluated"} <= set(
        events
    )
    assert list(events.values()) == sorted(events.values(), reverse=True)


def test_the_overview_is_plain_data() -> None:
    overview = overview_of(trace_of("fl"))
    plain = json.loads(json.dumps(overview.plain()))
    line = plain["nodes"]["d0"]
    assert line["idle_2"] == overview.nodes["d0"].usage.idle_2  # type: ignore[index]
    assert line["busy"] > 0
    assert line["utilisation"] == pytest.approx(
        line["busy"] / (line["busy"] + line["idle_1"] + line["idle_2"])
    )
    assert plain["waits"][0]["kind"] in ("idle_1", "idle_2")
