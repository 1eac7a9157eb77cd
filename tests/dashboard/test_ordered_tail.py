from __future__ import annotations

import random
from pathlib import Path

import pytest

from fedoptima.core.seeding import derive
from fedoptima.core.types import SERVER
from fedoptima.dashboard.ordered_tail import OrderedTail
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.trace.tail import CutBack
from fedoptima.trace.time_order import PATIENCE
from fedoptima.trace.writer import TraceWriter
from tests.dashboard.folders import GrowingRun, write_run
from tests.dashboard.stories import METHODS, story


def lines(records: list[Record]) -> list[str]:
    return [record.to_line() for record in records]


def read_on(tail: OrderedTail, *, settled: bool) -> list[Record]:
    tail.read()
    return list(tail.ordered(settled=settled))


@pytest.mark.parametrize("networked", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_finished_run_is_read_in_the_order_of_its_trace(
    tmp_path: Path, method: str, networked: bool
) -> None:
    run = write_run(tmp_path / "run", story(method), networked=networked)
    tail = OrderedTail(run)
    found = read_on(tail, settled=True)
    assert lines(found) == lines(list(read_trace(run / "trace.jsonl.gz")))
    assert len(found) == len(story(method))
    assert not tail.behind
    assert tail.late == 0


def test_a_real_run_waits_a_moment_for_its_devices(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run", networked=True)
    run.write(story()[:100])
    tail = OrderedTail(run.path)
    found = read_on(tail, settled=False)
    assert 0 < len(found) < 100
    assert max(record.at for record in found) <= tail.newest - PATIENCE
    assert len(found) + len(list(tail.ordered(settled=True))) == 100


def test_records_that_come_within_the_patience_find_their_place(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run", networked=True)
    draw, tail, found = random.Random(derive(1, "delays")), OrderedTail(run.path), []
    arrivals = sorted(
        (record.at + (draw.uniform(0, 0.9 * PATIENCE) if record.node != SERVER else 0), index)
        for index, record in enumerate(story())
    )
    # Each node's records stay in order: a file is only written on.
    unsent = {record.node: [r for r in story() if r.node == record.node] for record in story()}
    for begin in range(0, len(arrivals), 20):
        run.write(unsent[story()[at].node].pop(0) for _, at in arrivals[begin : begin + 20])
        found += read_on(tail, settled=False)
    found += read_on(tail, settled=True)
    assert tail.late == 0
    assert lines(found) == lines(list(read_trace(run.path / "trace.jsonl.gz")))


def test_a_record_that_comes_too_late_is_counted_as_new_and_said_to_be_late(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run", networked=True)
    records = [record for record in story() if record.node != "d1"]
    missing = [record for record in story() if record.node == "d1"]
    run.write(records)
    tail = OrderedTail(run.path)
    before = read_on(tail, settled=False)
    run.write(missing[:3])
    after = read_on(tail, settled=False)
    times = [record.at for record in (*before, *after)]
    assert times == sorted(times)
    assert tail.late == 3


def test_a_resumed_run_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    writer = TraceWriter(path, {})
    for record in story()[:50]:
        writer.write(record)
    mark = writer.mark()
    for record in story()[50:]:
        writer.write(record)
    writer.close()
    tail = OrderedTail(tmp_path)
    tail.read()
    TraceWriter.resume(path, mark).close()
    with pytest.raises(CutBack):
        tail.read()


def test_a_run_that_is_about_to_begin_has_no_records(tmp_path: Path) -> None:
    tail = OrderedTail(tmp_path / "not there")
    assert read_on(tail, settled=False) == []
    assert not tail.behind
