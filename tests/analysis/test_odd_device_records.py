"""A device may record what never happened. Whatever it is, if it is taken, all readers read it."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.overview import OverviewAccount
from fedoptima.analysis.spans import SpanAccount
from fedoptima.analysis.timeline import TimelineAccount
from fedoptima.core.effects import Halt, Run, Send
from fedoptima.core.events import Connected, JobDone, Received
from fedoptima.core.jobs import Backward, Forward, FullStep
from fedoptima.core.messages import ActivationBatch, GlobalModel, ModelUpdate
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.reporting.perfetto import PerfettoWriter
from fedoptima.trace.device_record import read_device_record
from fedoptima.trace.record import Record
from tests.support.rows import ROWS
from tests.trace.test_record import eventful

MOST = 1 << 53  # the largest number that is taken
DATA = Payload(PayloadId("d0/0/1"), MOST)
ODD = [
    Record(0.0, NodeId("d0"), event, effects)  # type: ignore[arg-type]
    for event, effects in [
        (JobDone(-MOST, FullStep(-MOST), DATA, samples=MOST), []),
        (JobDone(1, Forward(1, part=-5, parts=0), DATA, samples=-MOST), []),
        (Received(SERVER, -1, GlobalModel(-MOST, 1e308, DATA)), []),
        (Connected(SERVER, -1), [Send(SERVER, -1, ModelUpdate(-MOST, -MOST, DATA))]),
        (Connected(SERVER, 0), [Send(SERVER, 5, ActivationBatch(-1, DATA, -1, -1))]),
        (Connected(SERVER, 1), [Run(1, Backward(1, -1, DATA, True, 0)), Halt("no", True)]),
    ]
]


@cache
def story(method: str) -> list[Record]:
    return list(eventful(method).records)


@cache
def pool() -> list[Record]:
    return [*ODD, *(r for method in ROWS for r in story(method) if r.node != SERVER)]


own = st.tuples(st.floats(0.0, 1.0), st.sampled_from(["d0", "d1", "d9"]), st.integers(min_value=0))


@given(st.sampled_from(sorted(ROWS)), st.lists(own, max_size=30))
def test_no_reader_fails(method: str, said: list[tuple[float, str, int]]) -> None:
    base = story(method)
    odd = [
        replace(pool()[which % len(pool())], at=share * base[-1].at, node=NodeId(name))
        for share, name, which in said
    ]
    for record in odd:
        assert read_device_record(record.to_line(), record.node) == record
    accounts = Accounts()
    overview, spans = OverviewAccount(accounts), SpanAccount(accounts.usage)
    viewer = PerfettoWriter(io.StringIO(), "a run", accounts.server_state, cap=4)
    page = Accounts()
    timeline = TimelineAccount(page.usage)
    for record in sorted([*base, *odd], key=lambda record: record.at):
        accounts.observe(record)
        final = spans.observe(record)
        overview.observe(record, final)
        viewer.observe(record, final)
        page.observe(record)
        timeline.observe(record)
    viewer.add(spans.finish())
    viewer.close()
    assert overview.overview()
    assert accounts.summary() == page.summary()
    assert timeline.timeline()
