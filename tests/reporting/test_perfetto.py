"""What is written opens in the viewers: checked against the format, and against the spans."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.server_state import ServerState
from fedoptima.analysis.spans import Kind, Span, SpanAccount
from fedoptima.core.events import Evaluated, Received
from fedoptima.core.types import SERVER, NodeId
from fedoptima.reporting.perfetto import PerfettoWriter
from fedoptima.trace.record import Record
from tests.analysis.stories import SpanReader
from tests.reporting.perfetto_format import problems, slices
from tests.verification.traces import trace_of

METHODS = ["fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl"]


def written(records: Sequence[Record], cap: int | None = None) -> dict[str, Any]:
    file, accounts = io.StringIO(), Accounts()
    account = SpanAccount(accounts.usage)
    writer = PerfettoWriter(file, "a run", accounts.server_state, cap=cap)
    for record in records:
        accounts.observe(record)
        writer.observe(record, account.observe(record))
    writer.add(account.finish())
    writer.close()
    document: dict[str, Any] = json.loads(file.getvalue())
    assert writer.events == len(document["traceEvents"])
    return document


@cache
def fedoptima_run() -> dict[str, Any]:
    return written(trace_of("fedoptima"), cap=4)


def processes(document: dict[str, Any]) -> dict[int, str]:
    events = document["traceEvents"]
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def threads(document: dict[str, Any]) -> dict[tuple[int, int], str]:
    events = document["traceEvents"]
    named = [event for event in events if event["name"] == "thread_name"]
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in named}


def counts(document: dict[str, Any], name: str) -> list[tuple[float, float]]:
    events = document["traceEvents"]
    found = [event for event in events if event["ph"] == "C" and event["name"] == name]
    return [(event["ts"] / 1e6, next(iter(event["args"].values()))) for event in found]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_any_method_is_written_as_the_format_demands(method: str) -> None:
    assert problems(written(trace_of(method), cap=4)) == []


def test_every_span_is_a_slice_at_its_node() -> None:
    account, spans = SpanReader(), []
    for record in trace_of("fl"):
        spans += account.observe(record)
    spans += account.finish()
    document = written(trace_of("fl"))
    nodes = processes(document)
    found: Counter[tuple[str, str, int, int]] = Counter()
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            times = round(event["ts"] * 1000), round(event["dur"] * 1000)
            found[nodes[event["pid"]], event["cat"], *times] += 1
    assert found == Counter(
        (s.node, s.kind.value, round(s.start * 1e9), round(s.end * 1e9) - round(s.start * 1e9))
        for s in spans
    )


def test_work_waits_and_transfers_are_apart() -> None:
    document = fedoptima_run()
    names, kinds = threads(document), defaultdict(set)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            kinds[names[event["pid"], event["tid"]].split()[0]].add(event["cat"])
    assert kinds == {
        "compute": {"train", "merge", "other"},
        "waiting": {"idle_1", "away"},
        "send": {"send"},
        "receive": {"receive"},
    }


def test_the_server_is_on_top_and_devices_follow_by_name() -> None:
    document = fedoptima_run()
    nodes = processes(document)
    events = document["traceEvents"]
    order = {
        nodes[event["pid"]]: event["args"]["sort_index"]
        for event in events
        if event["name"] == "process_sort_index"
    }
    assert sorted(order, key=order.__getitem__) == ["server", "d0", "d1", "d2"]


def test_waits_are_named_in_words_and_jobs_by_their_name() -> None:
    names = {name for row in slices(fedoptima_run()["traceEvents"]).values() for *_, name in row}
    assert {"waiting for the other side", "away", "ServerStep", "ActivationBatch"} <= names


def test_the_queue_is_counted_against_its_cap() -> None:
    records = trace_of("fedoptima")
    queue = counts(fedoptima_run(), "activation queue")
    assert [value for _, value in counts(fedoptima_run(), "activation cap (omega)")] == [4]
    accounts = Accounts()
    for record in records:
        accounts.observe(record)
    assert max(value for _, value in queue) == accounts.summary().memory.queue.peak
    assert queue[0][1] == 0
    assert "activation cap (omega)" not in json.dumps(written(records))  # there is none


def test_accuracy_is_a_counter() -> None:
    accounts = Accounts()
    for record in trace_of("fedoptima"):
        accounts.observe(record)
    curve = accounts.summary().curve
    assert curve
    found = counts(fedoptima_run(), "accuracy")
    assert [value for _, value in found] == pytest.approx([100 * (p.accuracy or 0) for p in curve])


def test_without_accuracy_the_loss_is_a_counter() -> None:
    measured = Evaluated(1, (("loss", 0.25), ("mae", 0.5)))
    document = written([*trace_of("fl"), Record(99.0, SERVER, measured, [])])
    assert [value for _, value in counts(document, "loss")] == [0.25]


def test_arrows_join_the_two_ends_of_a_payloads_way() -> None:
    document = fedoptima_run()
    nodes, events = processes(document), document["traceEvents"]
    begun = {e["id"]: nodes[e["pid"]] for e in events if e["ph"] == "s"}
    ended = {e["id"]: nodes[e["pid"]] for e in events if e["ph"] == "f"}
    assert len(begun) > 20
    assert all((begun[number] == "server") != (ended[number] == "server") for number in begun)


def test_transfers_that_overlap_are_put_side_by_side() -> None:
    file = io.StringIO()
    writer, node = PerfettoWriter(file, "a run", ServerState()), NodeId("d")
    for start, end in [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)]:
        writer.add([Span(node, Kind.SEND, start, end, "ActivationBatch", SERVER, 64)])
    writer.close()
    document = json.loads(file.getvalue())
    assert problems(document) == []
    assert sorted(threads(document).values()) == ["send", "send 2"]


def test_names_may_hold_anything() -> None:
    file = io.StringIO()
    writer, node = PerfettoWriter(file, 'a "run"\\', ServerState()), NodeId('küche "links"')
    writer.add([Span(node, Kind.TRAIN, 0.0, 1.0, "FullStep", peer='"')])
    writer.close()
    document = json.loads(file.getvalue())
    assert problems(document) == []
    assert 'küche "links"' in processes(document).values()


def test_it_is_written_as_it_comes() -> None:
    file, account = io.StringIO(), SpanReader()
    writer, sizes = PerfettoWriter(file, "a run", ServerState()), []
    for record in trace_of("pipar"):
        writer.observe(record, account.observe(record))
        sizes.append(file.tell())
    assert sizes[len(sizes) // 2] > sizes[-1] / 4


# ---- the checks can fail ---------------------------------------------------------------------


def spoilt(**change: object) -> dict[str, Any]:
    """With something wrong about its last slice of work."""
    document = deepcopy(fedoptima_run())
    event = next(e for e in reversed(document["traceEvents"]) if e.get("cat") == "train")
    event.update(change)
    return document


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ph": "Z"}, "of no known kind"),
        ({"dur": None}, "dur is missing"),
        ({"dur": -1}, "a negative time"),
        ({"dur": 1e12, "ts": 0}, "begins before"),
        ({"ts": "1"}, "ts is missing or of the wrong type"),
        ({"pid": 99}, "has no name"),
        ({"colour": "red"}, "does not belong here"),
    ],
)
def test_a_broken_file_is_found_out(change: dict[str, object], complaint: str) -> None:
    assert any(complaint in problem for problem in problems(spoilt(**change)))


def test_an_arrow_without_an_end_is_found_out() -> None:
    document = deepcopy(fedoptima_run())
    document["traceEvents"] = [e for e in document["traceEvents"] if e["ph"] != "f"]
    assert any("arrows without an end" in problem for problem in problems(document))


def test_received_messages_are_in_the_file() -> None:
    records = trace_of("fedasync")
    kinds = Counter(
        type(record.event.message).__name__
        for record in records
        if isinstance(record.event, Received)
    )
    names = Counter(
        name for row in slices(written(records)["traceEvents"]).values() for *_, name in row
    )
    assert names["ModelUpdate"] >= 2 * kinds["ModelUpdate"] > 0
