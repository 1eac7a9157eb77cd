"""The timeline, one lane per node. The page draws it: only there is known how wide it is and what
part of it is looked at, so zooming in shows ever finer pieces.

Shares of time go over as one byte a bin and kind. All spans go, too, while they are few.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

import numpy as np

from fedoptima.analysis.run_view import RunView
from fedoptima.analysis.spans import Kind, Span
from fedoptima.analysis.timeline import Lane, Timeline
from fedoptima.reporting.figures.figure import (
    Figure,
    Json,
    left_out,
    node_name,
    shown_nodes,
    time_unit,
)

KINDS = tuple(Kind)  # the page knows them by their place
_LANE = 30  # pixels
_WORDS = 4000  # different names of jobs and messages that go over


def timeline(view: RunView, *, exact: bool = True) -> Figure:
    """``exact``: with the spans, if there are not too many."""
    nodes = [node for node in shown_nodes(view) if node in view.timeline.lanes]
    unit, lanes = time_unit([view]), view.timeline
    data: Json = {
        "unit": unit.name,
        "unitSeconds": unit.seconds,
        "seconds": view.summary.seconds,
        "binSeconds": lanes.bin_seconds,
        "nodes": [{"name": node, "tick": node_name(node)} for node in nodes],
        "shares": [_packed_lane(lanes.lanes[node]) for node in nodes],
    }
    if exact and lanes.exact is not None:
        data["spans"] = _packed_spans(lanes, [s for s in lanes.exact if s.node in nodes], nodes)
    return Figure(
        "timeline",
        "Timeline",
        "A lane a node: what filled its time, by colour, in proportion where a column covers "
        "several things; the thin line below shows its transfers. Drag to zoom in, double-click "
        f"to see all; the buttons do the same.{left_out(view)}",
        [],
        {},
        height=90 + _LANE * len(nodes),
        lanes=data,
    )


def _packed_lane(lane: Lane) -> Json:
    return {str(KINDS.index(kind)): _bytes(row) for kind, row in lane.shares.items() if any(row)}


def _bytes(shares: Sequence[float]) -> str:
    """What there is a little of must not vanish: 1 stands for anything above 0."""
    scaled = np.clip(np.ceil(np.asarray(shares) * 255 - 1e-6), 0, 255)
    return _text(scaled.astype(np.uint8))


def _packed_spans(lanes: Timeline, spans: Sequence[Span], nodes: Sequence[str]) -> Json:
    place = {node: index for index, node in enumerate(nodes)}
    words: dict[str, int] = {}
    for span in spans:
        if len(words) < _WORDS:
            words.setdefault(span.what, len(words))
    return {
        "start": _text(np.array([s.start - lanes.start for s in spans], dtype="<f4")),
        "end": _text(np.array([s.end - lanes.start for s in spans], dtype="<f4")),
        "node": _text(np.array([place[s.node] for s in spans], dtype=np.uint8)),
        "kind": _text(np.array([KINDS.index(s.kind) for s in spans], dtype=np.uint8)),
        "what": _text(np.array([words.get(s.what, 0) for s in spans], dtype="<u2")),
        "words": [escape(word, quote=False) for word in words],
    }


def _text(array: np.ndarray[tuple[int], np.dtype[np.generic]]) -> str:
    return b64encode(array.tobytes()).decode("ascii")
