"""What holds of the spans of every run, whatever its method and its luck."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedoptima.analysis.idle_time import Usage, UsageAccount
from fedoptima.analysis.spans import Kind, Span
from fedoptima.core.effects import Halt
from fedoptima.core.events import Received
from fedoptima.core.types import NodeId
from fedoptima.testing.world import Description, World
from tests.analysis.span_stories import by_time, lane, spans_of
from tests.analysis.stories import SpanReader
from tests.support.fleets import descriptions
from tests.verification.traces import trace_of

METHODS = ["fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl", "cse_fsl"]
WORK = (Kind.TRAIN, Kind.MERGE, Kind.OTHER)


def sums(spans: Sequence[Span]) -> dict[tuple[NodeId, Kind], float]:
    total: defaultdict[tuple[NodeId, Kind], float] = defaultdict(float)
    for span in spans:
        total[span.node, span.kind] += span.end - span.start
    return total


def assert_adds_up(spans: Sequence[Span], usage: dict[NodeId, Usage]) -> None:
    total = sums(spans)
    for node, use in usage.items():
        busy = sum(total[node, kind] for kind in WORK)
        found = (busy, total[node, Kind.IDLE_1], total[node, Kind.IDLE_2])
        assert found == pytest.approx((use.busy, use.idle_1, use.idle_2), abs=1e-9)


def assert_covers(spans: Sequence[Span]) -> None:
    """From its first moment on, a node's time is told without a gap and without an overlap."""
    for node in {span.node for span in spans}:
        told_so_far = lane(spans, node)
        for (_, _, end), (_, begin, _) in pairwise(told_so_far):
            assert begin == pytest.approx(end, abs=1e-9)
        if told_so_far:
            assert told_so_far[-1][2] == max(span.end for span in spans)


@pytest.mark.parametrize("method", METHODS)
def test_spans_sum_to_the_usage_at_any_moment_whatever_happens(method: str) -> None:
    account, alone, found = SpanReader(), UsageAccount(), []
    for record in trace_of(method):  # with cuts, a hang, leaving and returning
        found += account.observe(record)
        alone.observe(record)
        so_far = found + account.finish()
        assert_adds_up(so_far, dict(account.usage.usage()))
        assert account.usage.usage() == alone.usage(), "spans must not change the sums"
    assert_covers(so_far)
    kinds = {span.kind for span in found}
    assert {Kind.TRAIN, Kind.MERGE, Kind.SEND, Kind.RECEIVE, Kind.IDLE_1, Kind.AWAY} <= kinds
    if method in ("fl", "splitfed", "pipar", "cse_fsl"):
        assert Kind.IDLE_2 in kinds


@settings(max_examples=50)
@given(descriptions())
def test_spans_sum_to_the_usage_whatever_the_fleet_the_method_and_its_luck(
    description: Description,
) -> None:
    world = World(description)
    world.run()
    account = UsageAccount()
    for record in world.records:
        account.observe(record)
    spans = spans_of(world.records)
    assert_adds_up(spans, dict(account.usage()))
    assert_covers(spans)


@pytest.mark.parametrize("method", METHODS)
def test_every_message_that_arrived_is_a_transfer(method: str) -> None:
    account, found, received = SpanReader(), [], 0
    for record in trace_of(method):
        found += account.observe(record)
        received += isinstance(record.event, Received)
        if any(isinstance(effect, Halt) for effect in record.effects):
            break
    assert sum(span.kind is Kind.SEND for span in found) == received
    assert sum(span.kind is Kind.RECEIVE for span in found) == received


@settings(max_examples=25)
@given(
    method=st.sampled_from(METHODS),
    skews=st.tuples(*[st.floats(-0.002, 0.002)] * 3),
)
def test_clocks_that_differ_a_little_make_no_negative_spans(
    method: str, skews: tuple[float, ...]
) -> None:
    """As in a real run: each device's records are in order, but off by a moment."""
    skew = {f"d{number}": seconds for number, seconds in enumerate(skews)}
    records = by_time(
        [
            replace(record, at=max(0.0, record.at + skew.get(record.node, 0.0)))
            for record in trace_of(method, ())
        ]
    )
    account = UsageAccount()
    for record in records:
        account.observe(record)
    spans = spans_of(records)
    assert all(span.end >= span.start for span in spans)
    assert_covers(spans)
    total = sums(spans)
    for node, use in account.usage().items():
        idle = total[node, Kind.IDLE_1] + total[node, Kind.IDLE_2]
        assert sum(total[node, kind] for kind in WORK) == pytest.approx(use.busy, abs=1e-9)
        assert idle == pytest.approx(use.idle, abs=1e-9)
        # A wait that ends with the run cannot be made up for.
        assert total[node, Kind.IDLE_2] == pytest.approx(use.idle_2, abs=0.0041)
