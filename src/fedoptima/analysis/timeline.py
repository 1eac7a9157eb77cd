"""What every node did over the course of a run, in bounded space.

The whole run is kept in bins that grow with it, the last minutes in finer ones for live views, and
the spans themselves while they are few.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from fedoptima.analysis.bins import Bins, FoldingBins, Overlaps, RecentBins
from fedoptima.analysis.idle_time import UsageAccount
from fedoptima.analysis.spans import Kind, Span, SpanAccount
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import PlanRun
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record

BINS = 2000  # even
_FEWEST, _MOST_CELLS, _ROWS = 40, 1 << 25, 6  # with many devices: bins of all, rows of each
MOST_EXACT = 20_000  # spans
_RECENT_BINS, _RECENT_WIDTH = 1200, 0.5  # ten minutes


@dataclass(frozen=True, slots=True)
class Lane:
    """One node: of each kind that it spent time on, the share of every bin, 0 to 1.

    Work, waits and absence sum to at most 1. Transfers overlap them; several at once count once.
    """

    shares: Mapping[Kind, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Timeline:
    start: float  # of the first bin, on the trace's clock; of the whole run: the finished plan
    bin_seconds: float
    bins: int  # in each row; the last may reach beyond the last record
    lanes: Mapping[NodeId, Lane]  # the server first, then devices by name
    exact: tuple[Span, ...] | None  # all spans by their start, while they are few


class TimelineAccount:
    """Feed it every record, in order, after the usage account; asking changes nothing.

    With ``recent=False`` nobody will ask for a `window`, and the finer bins are left out.
    """

    def __init__(self, usage: UsageAccount, bins: int = BINS, *, recent: bool = True) -> None:
        self._spans = SpanAccount(usage)
        self._began = False
        self._whole = FoldingBins(bins)
        self._recent = RecentBins(_RECENT_BINS, _RECENT_WIDTH) if recent else None
        self._transfers = Overlaps()
        self._exact: list[Span] | None = []

    def observe(self, record: Record) -> None:
        spans = self._spans.observe(record)
        if not self._began:
            self._begin(record)
        elif spans:
            _add(spans, self._transfers, *self._bins)
            if self._exact is not None:
                self._exact += spans
                if len(self._exact) > MOST_EXACT:
                    self._exact = None

    @property
    def _bins(self) -> tuple[Bins, ...]:
        return (self._whole,) if self._recent is None else (self._whole, self._recent)

    def timeline(self) -> Timeline:
        """The whole run, as of the last record."""
        exact = self._exact
        if exact is not None:
            exact = sorted([*exact, *self._spans.finish()], key=lambda span: span.start)
        return self._drawn(self._whole, self._whole.start, exact)

    def window(self, seconds: float) -> Timeline:
        """The last ``seconds``, in fine bins: up to ten minutes, of a short run more."""
        assert self._recent is not None
        fine = self._whole if self._whole.width <= self._recent.width else self._recent
        return self._drawn(fine, self._spans.now - seconds, None)

    def _begin(self, record: Record) -> None:
        """With the finished plan: start-up is no part of the run."""
        event = record.event
        if isinstance(event, JobDone) and isinstance(event.job, PlanRun):
            self._began = True
            most = bins_of_each(1 + len(event.job.devices))
            self._whole.count = min(self._whole.count, most)
            if self._recent is not None and most < _RECENT_BINS:
                self._recent = RecentBins(most, _RECENT_WIDTH * _RECENT_BINS / most)
            for bins in self._bins:
                bins.start = record.at

    def _drawn(self, bins: Bins, since: float, exact: Sequence[Span] | None) -> Timeline:
        now = self._spans.now
        bins = bins.copy()
        first = last = 0
        if self._began:
            _add(self._spans.finish(), self._transfers.copy(), bins)
            first = max(0, int((since - bins.start) / bins.width))
            last = min(bins.count, ceil((now - bins.start) / bins.width))
        return Timeline(
            bins.start + first * bins.width,
            bins.width,
            max(0, last - first),
            _lanes(bins, first, last),
            None if exact is None else tuple(exact),
        )


def bins_of_each(nodes: int) -> int:
    """The most that a row of so many nodes may have: even, so that a row can be folded."""
    return max(_FEWEST, _MOST_CELLS // (_ROWS * nodes) // 2 * 2)


def _add(spans: Iterable[Span], transfers: Overlaps, *rows: Bins) -> None:
    for node, kind, start, end, _, _, _ in spans:
        name = (node, kind)
        if kind is Kind.SEND or kind is Kind.RECEIVE:
            for piece_start, piece_end in transfers.not_counted(name, start, end):
                for bins in rows:
                    bins.add(name, piece_start, piece_end)
        else:
            for bins in rows:
                bins.add(name, start, end)


def _lanes(bins: Bins, first: int, last: int) -> dict[NodeId, Lane]:
    shares: dict[NodeId, dict[Kind, Sequence[float]]] = {}
    for (node, kind), row in bins.rows.items():
        of_node = shares.setdefault(node, {})
        # An array: of many devices, tuples of floats would take gigabytes.
        of_node[kind] = array("d", [min(1.0, seconds / bins.width) for seconds in row[first:last]])
    names = sorted(shares, key=lambda node: (node != SERVER, node))
    return {name: Lane(shares[name]) for name in names}
