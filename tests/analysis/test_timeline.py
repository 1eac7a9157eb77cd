"""Bins hold what the spans say: nothing is lost when they fold, and nothing grows with the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.analysis.bins import FoldingBins, Overlaps, RecentBins
from fedoptima.analysis.idle_time import UsageAccount
from fedoptima.analysis.spans import Kind, Span
from fedoptima.analysis.timeline import (
    BINS,
    MOST_EXACT,
    Timeline,
    TimelineAccount,
    bins_of_each,
)
from fedoptima.core.effects import Send
from fedoptima.core.events import Received, TimerFired
from fedoptima.core.messages import ActivationBatch
from fedoptima.core.types import SERVER, NodeId
from fedoptima.reporting.palette import KIND_NAMES, KINDS_ON_DARK, KINDS_ON_LIGHT, METHODS
from fedoptima.trace.record import Record
from tests.analysis.span_stories import spans_of
from tests.analysis.stories import A, B, blob, connects, loads, plans, told, works
from tests.verification.traces import trace_of

TRANSFERS = (Kind.SEND, Kind.RECEIVE)
Seconds = dict[tuple[NodeId, Kind], float]


def account_of(records: Iterable[Record], bins: int = BINS) -> TimelineAccount:
    usage = UsageAccount()
    account = TimelineAccount(usage, bins)
    for record in records:
        usage.observe(record)
        account.observe(record)
    return account


def union(stretches: Iterable[tuple[float, float]]) -> float:
    total, upto = 0.0, float("-inf")
    for start, end in sorted(stretches):
        total += max(0.0, end - max(start, upto))
        upto = max(upto, end)
    return total


def seconds_between(spans: Sequence[Span], begin: float, end: float) -> Seconds:
    """By hand: each kind's time, overlapping spans counted once."""
    stretches = defaultdict(list)
    for span in spans:
        if span.end > begin and span.start < end:
            cut = (max(begin, span.start), min(end, span.end))
            stretches[span.node, span.kind].append(cut)
    return {key: total for key, found in stretches.items() if (total := union(found)) > 0}


def seconds_in(timeline: Timeline) -> Seconds:
    return {
        (node, kind): sum(shares) * timeline.bin_seconds
        for node, lane in timeline.lanes.items()
        for kind, shares in lane.shares.items()
        if any(shares)
    }


def began(records: Iterable[Record]) -> float:
    return next(r.at for r in records if "PlanRun" in str(r.event))


def long_run(until: int, every: float = 10.0) -> list[Record]:
    """A device that works for a while, again and again; it waits in between."""
    records = [*connects(0.0, A), *plans(0.0, 5.0), *loads(6.0, 7.0, A)]
    at = 8.0
    while at < until:
        records += works(at, at + 0.3 * every, A)
        at += every
    return records


# ---- the whole run ---------------------------------------------------------------------------


@pytest.mark.parametrize("bins", [2, 8, BINS])
@pytest.mark.parametrize("method", ["fedoptima", "fl", "pipar"])
def test_bins_hold_all_the_time_that_spans_tell(method: str, bins: int) -> None:
    records = trace_of(method)
    timeline = account_of(records, bins).timeline()
    assert timeline.start == began(records)
    expected = seconds_between(spans_of(records), timeline.start, float("inf"))
    assert seconds_in(timeline) == pytest.approx(expected)
    assert timeline.bins <= bins
    for lane in timeline.lanes.values():
        assert all(len(shares) == timeline.bins for shares in lane.shares.values())
        assert all(0 <= share <= 1 for shares in lane.shares.values() for share in shares)
        work_and_waits = [shares for kind, shares in lane.shares.items() if kind not in TRANSFERS]
        assert all(sum(column) <= 1 + 1e-9 for column in zip(*work_and_waits, strict=True))


def test_a_lane_is_full_from_the_first_moment_on() -> None:
    timeline = account_of(trace_of("fedoptima"), 64).timeline()
    shares = [row for kind, row in timeline.lanes[SERVER].shares.items() if kind not in TRANSFERS]
    whole_bins = [sum(column) for column in zip(*shares, strict=True)][:-1]
    assert whole_bins == pytest.approx([1.0] * (timeline.bins - 1))


def test_bins_tell_when_it_was() -> None:
    timeline = account_of(long_run(until=1020), bins=64).timeline()
    assert (timeline.start, timeline.bin_seconds, timeline.bins) == (5.0, 16.0, 64)
    train = timeline.lanes[A].shares[Kind.TRAIN]
    assert train[:3] == pytest.approx((6 / 16, 3 / 16, 6 / 16))  # from 8, 18; 28; 38, 48 on
    assert list(timeline.lanes[A].shares[Kind.OTHER][:2]) == [1 / 16, 0.0]


def test_the_server_comes_first_and_devices_by_name() -> None:
    records = [*connects(0.0, B, A), *plans(0.0, 5.0), *loads(6.0, 7.0, B), *loads(6.5, 7.5, A)]
    assert list(account_of(records).timeline().lanes) == [SERVER, A, B]


def test_overlapping_transfers_count_once() -> None:
    def sent(at: float, seq: int) -> Record:
        return told(at, A, TimerFired(""), Send(SERVER, 1, batch(seq)))

    def got(at: float, seq: int) -> Record:
        return told(at, SERVER, Received(A, 1, batch(seq)))

    def batch(seq: int) -> ActivationBatch:
        return ActivationBatch(seq, blob(str(seq), 10))

    mail = [sent(6.0, 0), sent(7.0, 1), got(8.0, 0), got(10.0, 1), sent(12.0, 2), got(13.0, 2)]
    timeline = account_of([*connects(0.0, A), *plans(0.0, 5.0), *mail]).timeline()
    assert seconds_in(timeline)[A, Kind.SEND] == pytest.approx(5.0)
    assert max(timeline.lanes[A].shares[Kind.SEND]) == 1.0
    assert seconds_in(timeline)[SERVER, Kind.RECEIVE] == pytest.approx(5.0)


def test_before_the_plan_there_is_nothing_to_draw() -> None:
    account = account_of(connects(0.0, A, B))
    assert account.timeline().lanes == {}
    assert account.timeline().bins == 0
    assert account.window(60.0).lanes == {}
    assert account.timeline().exact == ()


def test_asking_changes_nothing() -> None:
    records = trace_of("fl")
    usage, quiet = UsageAccount(), account_of(records, 16)
    asked = TimelineAccount(usage, 16)
    for record in records:
        usage.observe(record)
        asked.observe(record)
        asked.timeline()
        asked.window(3.0)
    assert asked.timeline() == quiet.timeline()
    assert asked.window(3.0) == quiet.window(3.0)


def test_spans_are_kept_as_they_are_while_they_are_few() -> None:
    records = trace_of("fl")
    exact = account_of(records).timeline().exact
    assert exact is not None
    began_at = began(records)
    expected = [span for span in spans_of(records) if span.end > began_at]
    assert sorted(exact) == sorted(expected)
    assert [span.start for span in exact] == sorted(span.start for span in exact)


def test_many_spans_are_binned_only() -> None:
    records = [*connects(0.0, A), *plans(0.0, 5.0), *loads(6.0, 7.0, A)]
    for number in range(MOST_EXACT // 2):  # a wait and a job each
        records += works(8.0 + number / 2, 8.25 + number / 2, A)
    account = account_of(records)
    assert account.timeline().exact is None
    train = seconds_in(account.timeline())[A, Kind.TRAIN]
    assert train == pytest.approx(0.25 * MOST_EXACT / 2)
    assert account.timeline().bins <= BINS


# ---- the last minutes ------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [30.0, 117.3, 600.0])
@pytest.mark.parametrize("until", [700, 3000, 20_000])
def test_a_window_is_the_end_of_the_run_in_fine_bins(seconds: float, until: int) -> None:
    records = long_run(until)
    window = account_of(records, bins=128).window(seconds)
    now = records[-1].at
    assert window.bin_seconds <= 0.5
    assert window.start == pytest.approx(now - seconds, abs=window.bin_seconds)
    assert window.start <= now - seconds
    expected = seconds_between(spans_of(records), window.start, now)
    assert seconds_in(window) == pytest.approx(expected)
    assert window.exact is None


def test_a_window_on_a_short_run_is_all_of_it() -> None:
    account = account_of(long_run(40))
    window, whole = account.window(600.0), account.timeline()
    assert (window.start, window.bins, window.lanes) == (whole.start, whole.bins, whole.lanes)


def test_a_wait_that_becomes_known_late_is_in_the_window() -> None:
    records = [*long_run(5000), *works(5500.0, 5501.0, A)]
    window = account_of(records).window(590.0)
    idle = window.lanes[A].shares[Kind.IDLE_1]
    assert sum(idle) * window.bin_seconds == pytest.approx(
        seconds_between(spans_of(records), window.start, 5501.0)[A, Kind.IDLE_1]
    )


# ---- bins and overlaps alone -----------------------------------------------------------------

ROW = (A, Kind.SEND)
GRID = st.tuples(st.integers(0, 400), st.integers(0, 60))


@given(st.lists(GRID, min_size=1, max_size=60), st.sampled_from([2, 6, 64]))
def test_folding_loses_nothing(stretches: list[tuple[int, int]], count: int) -> None:
    bins = FoldingBins(count)
    for start, length in stretches:
        bins.add(ROW, float(start), float(start + length))
    total = sum(bins.rows[ROW]) if ROW in bins.rows else 0.0
    assert total == pytest.approx(sum(length for _, length in stretches))
    assert all(len(row) == count for row in bins.rows.values())


@given(st.lists(GRID, min_size=1, max_size=60))
def test_recent_bins_forget_the_old_and_nothing_else(stretches: list[tuple[int, int]]) -> None:
    bins, by_end = RecentBins(10, 0.5), sorted(stretches, key=sum)
    for start, length in by_end:
        bins.add(ROW, float(start), float(start + length))
    newest = sum(by_end[-1])
    assert bins.start <= max(0.0, newest - 10 * 0.5)
    assert bins.end >= newest
    for place, found in enumerate(bins.rows.get(ROW, ())):
        begin = bins.start + place * bins.width
        expected = sum(
            max(0.0, min(start + length, begin + bins.width) - max(start, begin))
            for start, length in stretches
        )
        assert found == pytest.approx(expected)


@given(st.lists(GRID, max_size=60))
def test_overlaps_tell_each_moment_once(stretches: list[tuple[int, int]]) -> None:
    overlaps, told_moments = Overlaps(), []
    for start, length in sorted(stretches, key=sum):
        for begin, end in overlaps.not_counted(ROW, start, start + length):
            assert begin < end
            told_moments += list(range(int(begin), int(end)))
    expected = {m for start, length in stretches for m in range(start, start + length)}
    assert sorted(told_moments) == sorted(expected)


def test_very_many_overlaps_are_not_all_remembered() -> None:
    overlaps = Overlaps()
    for number in range(50_000):
        assert overlaps.not_counted(ROW, number, number + 0.5) == [(number, number + 0.5)]
    assert sum(len(told) for told in overlaps._counted.values()) < 5000


# ---- colours ---------------------------------------------------------------------------------


def test_every_kind_has_a_name_and_a_colour_of_its_own_in_light_and_dark() -> None:
    assert set(KIND_NAMES) == set(Kind)
    for colours in (KINDS_ON_LIGHT, KINDS_ON_DARK):
        assert set(colours) == set(Kind)
        assert len(set(colours.values())) == len(Kind)


def test_every_method_looks_different_even_without_colours() -> None:
    from fedoptima.methods.registry import METHODS as REGISTERED

    assert set(METHODS) == set(REGISTERED)
    assert len({look.dash for look in METHODS.values()}) == len(METHODS)
    assert len({look.colour for look in METHODS.values()}) == len(METHODS)


@pytest.mark.parametrize("nodes", [1, 17, 1_000, 10_000, 100_000])
def test_the_bins_of_all_nodes_together_are_bounded(nodes: int) -> None:
    bins = bins_of_each(nodes)
    assert bins % 2 == 0
    assert bins >= min(BINS, 40)
    assert bins * nodes * len(Kind) * 8 < 2**30  # bytes


def test_with_few_devices_the_bins_are_as_fine_as_ever() -> None:
    assert bins_of_each(1_001) > BINS
