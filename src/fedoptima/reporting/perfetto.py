"""A trace for the timeline viewers: ui.perfetto.dev and chrome://tracing open the file.

The JSON "trace event" format: a process is a node, its threads are what it does, what it waits for
and what it sends and receives. Slices of one thread must not overlap, so transfers that do are put
on several. Written as it comes: a trace of any length takes no more memory than a short one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TextIO

from fedoptima.analysis.server_state import ServerState
from fedoptima.analysis.spans import Kind, Span
from fedoptima.core.events import Evaluated
from fedoptima.core.messages import ENVELOPE_BYTES
from fedoptima.core.types import SERVER, NodeId
from fedoptima.reporting.palette import KIND_NAMES
from fedoptima.trace.record import Record

_TRACKS = {
    **dict.fromkeys((Kind.TRAIN, Kind.REUSE, Kind.MERGE, Kind.OTHER), "compute"),
    **dict.fromkeys((Kind.IDLE_1, Kind.IDLE_2, Kind.AWAY), "waiting"),
    Kind.SEND: "send",
    Kind.RECEIVE: "receive",
}
_ORDER = ["compute", "waiting", "send", "receive"]
_TRACKS_OF_A_KIND = 10_000  # more than messages are ever in flight at a node
_quote = json.JSONEncoder(ensure_ascii=False).encode


class _Track:
    """A thread of the viewer: one slice after the other."""

    def __init__(self, process: int, thread: int) -> None:
        self.process = process
        self.thread = thread
        self.free_at = 0  # nanoseconds
        self.slices: dict[tuple[Kind, str], str] = {}  # how each kind of slice begins, as JSON


class PerfettoWriter:
    """`observe` every record with the spans that it made final, `add` those left, `close`."""

    def __init__(
        self, file: TextIO, title: str, state: ServerState, *, cap: int | None = None
    ) -> None:
        """``state`` is fed first. ``cap``: omega, drawn beside the queue; None: it has none."""
        self.events = 0
        self._file = file
        self._cap = cap
        self._processes: dict[NodeId, int] = {}
        self._tracks: dict[tuple[NodeId, str], list[_Track]] = {}
        self._threads = 0
        self._state = state
        self._running = False
        self._waiting = 0  # activation batches
        self._arrows = 0
        file.write(f'{{"displayTimeUnit":"ms","otherData":{{"title":{_quote(title)}}},')
        file.write('"traceEvents":[')
        self._process(SERVER)

    def observe(self, record: Record, spans: Iterable[Span]) -> None:
        self.add(spans)
        if record.node == SERVER:
            self._count(record)

    def add(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self._slice(span)

    def close(self) -> None:
        """Complete the JSON; the file stays open."""
        devices = sorted(name for name in self._processes if name != SERVER)
        for place, name in enumerate([SERVER, *devices]):
            self._describe("process_sort_index", self._processes[name], 0, "sort_index", place)
        self._file.write("\n]}\n")

    # ---- slices ------------------------------------------------------------------------------

    def _slice(self, span: Span) -> None:
        start, end = _nanoseconds(span.start), _nanoseconds(span.end)
        track = self._free_track(span.node, _TRACKS[span.kind], start)
        track.free_at = end
        key = (span.kind, span.what)
        head = track.slices.get(key)
        if head is None:
            head = track.slices[key] = (
                f'{{"ph":"X","pid":{track.process},"tid":{track.thread},'
                f'"name":{_quote(span.what or KIND_NAMES[span.kind])},"cat":"{span.kind}"'
            )
        more = ""
        if span.nbytes:
            more = f',"args":{{"peer":{_quote(span.peer)},"bytes":{span.nbytes}}}'
        elif span.peer:
            more = f',"args":{{"peer":{_quote(span.peer)}}}'
        self._write(
            f'{head},"ts":{_microseconds(start)},"dur":{_microseconds(end - start)}{more}}}'
        )
        if span.nbytes > ENVELOPE_BYTES and end > start:
            self._arrow(span, track, start, end)

    def _arrow(self, span: Span, track: _Track, start: int, end: int) -> None:
        """From where a payload was sent to where it arrived; the two spans come one by one."""
        if span.kind is Kind.SEND:
            self._arrows += 1
            step, at = '"ph":"s"', start
        else:
            step, at = '"ph":"f","bp":"e"', end - 1  # still inside the slice
        self._write(
            f'{{{step},"pid":{track.process},"tid":{track.thread},"id":{self._arrows},'
            f'"name":"transfer","cat":"transfer","ts":{_microseconds(at)}}}'
        )

    def _free_track(self, node: NodeId, name: str, start: int) -> _Track:
        tracks = self._tracks.setdefault((node, name), [])
        for track in tracks:
            if track.free_at <= start:
                return track
        track = _Track(self._process(node), self._thread())
        tracks.append(track)
        number = f" {len(tracks)}" if len(tracks) > 1 else ""
        place = _ORDER.index(name) * _TRACKS_OF_A_KIND + len(tracks)
        self._describe("thread_name", track.process, track.thread, "name", name + number)
        self._describe("thread_sort_index", track.process, track.thread, "sort_index", place)
        return track

    # ---- counters ----------------------------------------------------------------------------

    def _count(self, record: Record) -> None:
        state = self._state
        if state.running and not self._running:
            self._running = True
            self._counter("activation queue", record.at, "batches", 0)
            if self._cap is not None:
                self._counter("activation cap (omega)", record.at, "batches", self._cap)
        if state.waiting != self._waiting:
            self._waiting = state.waiting
            self._counter("activation queue", record.at, "batches", self._waiting)
        if isinstance(record.event, Evaluated):
            metrics = dict(record.event.metrics)
            if (accuracy := metrics.get("accuracy")) is not None:
                self._counter("accuracy", record.at, "percent", round(100 * accuracy, 4))
            elif (loss := metrics.get("loss")) is not None:
                self._counter("loss", record.at, "loss", loss)

    def _counter(self, name: str, at: float, unit: str, value: float) -> None:
        self._write(
            f'{{"ph":"C","pid":{self._process(SERVER)},"tid":0,"name":"{name}",'
            f'"ts":{_microseconds(_nanoseconds(at))},"args":{{"{unit}":{value}}}}}'
        )

    # ---- what things are called --------------------------------------------------------------

    def _process(self, node: NodeId) -> int:
        number = self._processes.get(node)
        if number is None:
            number = self._processes[node] = len(self._processes) + 1
            self._describe("process_name", number, 0, "name", node)
        return number

    def _thread(self) -> int:
        """Unique in the whole file: not every viewer distinguishes equal ones of two processes."""
        self._threads += 1
        return self._threads

    def _describe(self, what: str, process: int, thread: int, key: str, value: str | int) -> None:
        self._write(
            f'{{"ph":"M","pid":{process},"tid":{thread},"name":"{what}",'
            f'"args":{{"{key}":{_quote(value)}}}}}'
        )

    def _write(self, event: str) -> None:
        self._file.write(f",\n{event}" if self.events else f"\n{event}")
        self.events += 1


def _nanoseconds(seconds: float) -> int:
    """Whole ones: what ends where the next begins must not overlap it by a rounding."""
    return round(seconds * 1e9)


def _microseconds(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}" if rest else str(whole)
