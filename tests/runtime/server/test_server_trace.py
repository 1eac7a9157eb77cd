"""A server's trace on a disk that is full for a while. Its limit is on the size of files, which any
process may lower for itself."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest

from fedoptima.core.events import Gap, TimerFired
from fedoptima.core.types import SERVER
from fedoptima.runtime.disk import Disk
from fedoptima.runtime.server.server_trace import ServerTrace
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.trace.writer import Mark, TraceWriter
from tests.support.file_sizes import largest_file

LOG = logging.getLogger("fedoptima.server")


def record(number: int) -> Record:
    return Record(float(number), SERVER, TimerFired(f"timer {number}"), [])


def opened(path: Path, mark: Mark | None = None) -> ServerTrace:
    disk = Disk(path.parent, LOG)
    if mark is None:
        return ServerTrace(TraceWriter(path, {"recipe": {}}), disk, lambda: 99.0)
    return ServerTrace(TraceWriter.resume(path, mark), disk, lambda: 99.0, mark.gap)


def write(trace: ServerTrace, *numbers: int) -> None:
    for number in numbers:
        trace.write(record(number))


def close(trace: ServerTrace) -> None:
    asyncio.run(trace.close())
    trace.finish()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl.gz"


def test_records_for_which_there_is_no_room_leave_a_gap_that_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = opened(path)
    write(trace, 1, 2)
    good = trace.mark().result()
    with largest_file(good.nbytes + 5):
        write(trace, 3, 4)
        missing = trace.mark(core=["a core"]).result()
        write(trace, 5)
        still = trace.mark(core=["a core"]).result()
        assert path.stat().st_size == good.nbytes, "nothing half written stays"
    write(trace, 6)
    closed = trace.mark(core=["a core"]).result()
    write(trace, 7)
    close(trace)
    gap = Gap(4, 3.0, (), None, '["a core"]')
    wanted = [record(1), record(2), Record(99.0, SERVER, gap, []), record(7)]
    assert list(read_trace(path)) == wanted
    assert missing == Mark(good.nbytes, 4, missing.digest, Gap(2, 3.0, ()))
    assert still.gap == Gap(3, 3.0, ())
    assert closed.gap is None
    assert caplog.text.count("the trace cannot be written (File too large)") == 1
    assert caplog.text.count("everything is written again") == 1


def test_a_run_that_was_killed_in_a_gap_goes_on_in_it(path: Path) -> None:
    trace = opened(path)
    write(trace, 1, 2)
    good = trace.mark().result()
    with largest_file(good.nbytes):
        write(trace, 3)
        mark = Mark.from_plain(trace.mark().result().plain())  # as a checkpoint keeps it
        write(trace, 4)
    close(trace)  # after the kill, if there was one
    again = opened(path, mark)
    write(again, 5)
    again.mark(core=["a core"]).result()
    mark = again.mark().result()
    close(again)
    found = list(read_trace(path))
    assert [type(each.event) for each in found] == [TimerFired, TimerFired, Gap]
    assert found[2].event == Gap(2, 3.0, (), None, '["a core"]')
    assert mark.records == 4
    close(opened(path, mark))  # a gap counts for what it stands for


def test_a_trace_that_ends_in_a_gap_says_so_if_there_is_room(path: Path) -> None:
    trace = opened(path)
    with largest_file(path.stat().st_size):
        write(trace, 1)
        trace.mark().result()
    close(trace)
    assert list(read_trace(path)) == [Record(99.0, SERVER, Gap(1, 1.0, ()), [])]


def test_a_disk_that_stays_full_keeps_nothing_from_ending(path: Path) -> None:
    trace = opened(path)
    before = path.read_bytes()
    with largest_file(path.stat().st_size):
        write(trace, 1)
        asyncio.run(trace.close())
        with pytest.raises(OSError, match="too large"):
            trace.finish()
        assert trace.missing == 1
    assert path.read_bytes() == before
    trace.finish()  # there is room again
    assert list(read_trace(path)) == [Record(99.0, SERVER, Gap(1, 1.0, ()), [])]


def test_a_gap_at_the_end_is_on_disk_before_the_trace_is_finished(path: Path) -> None:
    trace = opened(path)
    with largest_file(path.stat().st_size):
        write(trace, 1)
        asyncio.run(trace.close())

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output"):
            trace.finish()
    trace.finish()
    assert list(read_trace(path)) == [Record(99.0, SERVER, Gap(1, 1.0, ()), [])], "once"
