"""The part of the JSON trace event format that we write, as checks: what is wrong with a file?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

Thread = tuple[int, int]

_COMMON = {"ph": str, "pid": int, "tid": int, "name": str}
_TIME = {"ts": (int, float)}
_REQUIRED: dict[str, dict[str, object]] = {
    "X": {**_COMMON, **_TIME, "dur": (int, float), "cat": str},
    "M": {**_COMMON, "args": dict},
    "C": {**_COMMON, **_TIME, "args": dict},
    "s": {**_COMMON, **_TIME, "id": int, "cat": str},
    "f": {**_COMMON, **_TIME, "id": int, "cat": str, "bp": str},
}
_OPTIONAL: dict[str, dict[str, object]] = {"X": {"args": dict}}
_METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def problems(document: object) -> list[str]:
    return list(_problems(document))


def _problems(document: object) -> Iterator[str]:
    if not isinstance(document, dict):
        yield "not a JSON object"
        return
    if document.get("displayTimeUnit") not in ("ms", "ns"):
        yield "displayTimeUnit is neither ms nor ns"
    events = document.get("traceEvents")
    if not isinstance(events, list):
        yield "no list of traceEvents"
        return
    well_formed = True
    for number, event in enumerate(events):
        for problem in _event_problems(event):
            well_formed = False
            yield f"event {number}: {problem}: {event}"
    if well_formed:
        yield from _named(events)
        yield from _nested(events)
        yield from _paired(events)


def _event_problems(event: object) -> Iterator[str]:
    if not isinstance(event, dict) or event.get("ph") not in _REQUIRED:
        yield "of no known kind"
        return
    required, optional = _REQUIRED[event["ph"]], _OPTIONAL.get(event["ph"], {})
    wrong = [key for key, kind in required.items() if not isinstance(event.get(key), kind)]  # type: ignore[arg-type]
    if wrong:
        yield f"{wrong[0]} is missing or of the wrong type"
        return
    for key, value in event.items():
        if key not in required and not isinstance(value, optional.get(key, ())):  # type: ignore[arg-type]
            yield f"{key} does not belong here"
    if min(event.get("ts", 0), event.get("dur", 0)) < 0:
        yield "a negative time"
    if event["ph"] == "M":
        key, kind = _METADATA.get(event["name"], ("", ()))
        if not isinstance(event["args"].get(key), kind):  # type: ignore[arg-type]
            yield "no such metadata"
    if event["ph"] == "C" and not all(
        isinstance(value, int | float) for value in event["args"].values()
    ):
        yield "counts something that is no number"


def _named(events: list[dict[str, object]]) -> Iterator[str]:
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        if event["pid"] not in processes:
            yield f"process {event['pid']} has no name"
        if event["ph"] in "Xsf" and (event["pid"], event["tid"]) not in threads:
            yield f"thread {event['tid']} has no name"


def slices(events: list[dict[str, object]]) -> dict[Thread, list[tuple[int, int, str]]]:
    """Of each thread in the order of time: begin and end in nanoseconds, and the name."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)  # type: ignore[operator]
            thread = (event["pid"], event["tid"])
            found[thread].append((begin, begin + length, event["name"]))
    return {thread: sorted(row) for thread, row in found.items()}  # type: ignore[misc]


def _nested(events: list[dict[str, object]]) -> Iterator[str]:
    """A viewer drops slices that overlap others of the same thread."""
    for thread, row in slices(events).items():
        for (_, end, first), (begin, _, second) in pairwise(row):
            if begin < end:
                yield f"{second} begins before {first} ends, in thread {thread}"


def _paired(events: list[dict[str, object]]) -> Iterator[str]:
    """Each arrow has a beginning and an end, both inside a slice."""
    rows = slices(events)
    begun = {e["id"]: e for e in events if e["ph"] == "s"}
    ended = {e["id"]: e for e in events if e["ph"] == "f"}
    if begun.keys() != ended.keys():
        yield f"arrows without an end: {begun.keys() ^ ended.keys()}"
    for event in (*begun.values(), *ended.values()):
        at = round(event["ts"] * 1000)  # type: ignore[operator]
        row = rows.get((event["pid"], event["tid"]), [])  # type: ignore[arg-type]
        if not any(begin <= at < end for begin, end, _ in row):
            yield f"an arrow that touches no slice: {event}"
