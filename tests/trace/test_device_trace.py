"""A device's file in a real run: appended to, cut off by kills, on the server's clock."""

from __future__ import annotations

import errno
import gzip
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError, ProtocolViolation
from fedoptima.core.types import SERVER
from fedoptima.trace.description import SCHEMA
from fedoptima.trace.device_trace import DeviceTrace
from fedoptima.trace.reader import read_header, read_trace
from tests.trace.device_lines import PI, lines, record, times


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "devices" / "pi.jsonl.gz"


# ---- appending -----------------------------------------------------------------------------------


def test_what_was_appended_is_read(path: Path) -> None:
    trace = DeviceTrace(path)
    trace.append(lines(1.0, 2.0))
    trace.append([])
    trace.append(lines(2.5))
    assert list(read_trace(path)) == [record(at) for at in (1.0, 2.0, 2.5)]
    assert (trace.records, trace.last_at) == (3, 2.5)


def test_a_file_without_records_is_a_trace_already(path: Path) -> None:
    trace = DeviceTrace(path)
    assert (trace.records, trace.last_at) == (0, 0.0)
    assert read_header(path) == {"schema": SCHEMA}
    assert list(read_trace(path)) == []
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_every_append_is_on_disk_at_once_as_plain_gzip(path: Path) -> None:
    trace = DeviceTrace(path)
    for number in range(5):
        trace.append(lines(float(number)))
        with gzip.open(path, "rt") as file:
            assert len(file.readlines()) == 1 + trace.records == 2 + number


def test_a_file_is_gone_on_with(path: Path) -> None:
    DeviceTrace(path).append(lines(1.0, 2.0, 3.0))
    DeviceTrace(path).append(lines(4.0))
    again = DeviceTrace(path)
    assert (again.records, again.last_at) == (4, 4.0)
    assert times(list(read_trace(path))) == [1.0, 2.0, 3.0, 4.0]


def test_members_longer_than_a_read_are_counted(path: Path) -> None:
    noise = [record(float(n), text=os.urandom(2000).hex()).to_line() for n in range(60)]
    first = DeviceTrace(path)
    first.append(noise)
    for number in range(100, 400):
        first.append(lines(float(number)))
    again = DeviceTrace(path)
    assert (again.records, again.last_at) == (360, 399.0)


def test_a_torn_last_member_is_cut_off_wherever_it_was_torn(path: Path) -> None:
    trace = DeviceTrace(path)
    begun = path.stat().st_size
    trace.append(lines(1.0))
    kept = path.stat().st_size
    trace.append(lines(2.0, 3.0))
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        records = 1 if size >= kept else 0
        again = DeviceTrace(path)
        assert again.records == records
        assert path.stat().st_size == (kept if records else begun)
        again.append(lines(9.0))
        assert times(list(read_trace(path))) == [1.0, 9.0][1 - records :]


def test_noise_at_the_end_is_cut_off(path: Path) -> None:
    DeviceTrace(path).append(lines(1.0))
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    DeviceTrace(path).append(lines(2.0))
    assert times(list(read_trace(path))) == [1.0, 2.0]


def test_an_append_that_fails_half_way_leaves_the_file_as_it_was(path: Path) -> None:
    trace = DeviceTrace(path)
    trace.append(lines(1.0))
    whole = path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            trace.append(lines(2.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == whole
    trace.append(lines(3.0))
    assert trace.records == 2
    assert times(list(read_trace(path))) == [1.0, 3.0]


@pytest.mark.parametrize(
    "content",
    [
        b'{"schema": 99}\n',
        b"no header\n",
        b'{"schema": 2}\n' + gzip.compress(b"a text that is no record\n", mtime=0),
    ],
)
def test_a_file_that_cannot_be_continued_is_put_aside(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise its device could never connect again."""
    header, _, rest = content.partition(b"\x1f\x8b")
    damaged = gzip.compress(header) + (b"\x1f\x8b" + rest if rest else b"")
    path.parent.mkdir()
    path.write_bytes(damaged)
    trace = DeviceTrace(path)
    trace.append(lines(1.0))
    assert times(list(read_trace(path))) == [1.0]
    assert (path.parent / "pi.jsonl.gz.damaged").read_bytes() == damaged
    assert "cannot be continued, and is kept as pi.jsonl.gz.damaged" in caplog.text


@contextmanager
def unreadable(path: Path, after: int = 0) -> Iterator[None]:
    """It can be opened so many times; then reading it fails for a while."""
    opened = 0
    real = os.open

    def failing(name: str, *rest: int) -> int:
        nonlocal opened
        if name == str(path) or name == path:
            opened += 1
            if opened > after:
                raise OSError(errno.EIO, "Input/output error")
        return real(name, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", failing)
        yield


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("marked", [False, True])
def test_a_file_that_cannot_be_read_for_a_while_is_left_alone_and_continued_later(
    path: Path, after: int, marked: bool
) -> None:
    trace = DeviceTrace(path)
    trace.append(lines(1.0, 2.0))
    mark = trace.mark
    trace.append(lines(3.0))
    whole = path.read_bytes()
    with unreadable(path, after):
        again = DeviceTrace(path, mark if marked else None)
        assert again.mark == (mark if marked else (0, 0, 0.0))
        with pytest.raises(OSError, match="Input/output"):
            again.append(lines(4.0))
    assert path.read_bytes() == whole
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    again.append(lines(5.0))
    assert (again.records, again.last_at) == (4, 5.0)
    assert times(list(read_trace(path))) == [1.0, 2.0, 3.0, 5.0]


def test_a_folder_that_cannot_be_made_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written"):
        DeviceTrace(tmp_path / "devices" / "pi.jsonl.gz")


# ---- times ---------------------------------------------------------------------------------------


def test_records_are_put_on_the_servers_clock(path: Path) -> None:
    trace = DeviceTrace(path)
    written = trace.append_restamped(lines(1.0, 2.0), PI, lambda theirs: theirs + 100)
    assert times(written) == [101.0, 102.0]
    assert times(list(read_trace(path))) == [101.0, 102.0]


def test_times_never_decrease_even_if_the_clock_is_read_anew(path: Path) -> None:
    DeviceTrace(path).append_restamped(lines(1.0, 2.0), PI, lambda theirs: theirs + 100)
    trace = DeviceTrace(path)
    trace.append_restamped(lines(3.0, 5.0), PI, lambda theirs: theirs + 98)
    assert times(list(read_trace(path))) == [101.0, 102.0, 102.0, 103.0]


@pytest.mark.parametrize("line", [*lines(1.0, node=SERVER), "[1.0]", ""])
def test_a_device_cannot_write_what_is_not_its_own_record(path: Path, line: str) -> None:
    trace = DeviceTrace(path)
    with pytest.raises(ProtocolViolation, match="pi sent a record"):
        trace.append_restamped([*lines(1.0), line], PI, lambda theirs: theirs)
    assert trace.records == 0
    assert list(read_trace(path)) == []


ODD_MARKS = "\r\x0b\x0c\x1c\x85\u2028"  # each ends a line for some part of Python


@pytest.mark.parametrize("mark", ODD_MARKS)
def test_what_ends_a_line_elsewhere_does_not_end_one_in_a_trace(path: Path, mark: str) -> None:
    """A bare "\\r" between two fields is good JSON; it made resuming impossible for ever."""
    line = record(1.0, text=f"one{mark}two").to_line()
    if mark == "\r":
        line = line.replace(",", ",\r")
    trace = DeviceTrace(path)
    trace.append_restamped([line], PI, lambda theirs: theirs)
    assert (DeviceTrace(path).records, DeviceTrace(path).last_at) == (1, 1.0)
    assert list(read_trace(path)) == [record(1.0, text=f"one{mark}two")]


def test_a_device_file_that_was_written_with_bare_carriage_returns_is_continued(path: Path) -> None:
    """By an earlier version, which kept a device's own bytes."""
    trace = DeviceTrace(path)
    trace.append([record(1.0, text="end").to_line().replace(",", ",\r")])
    again = DeviceTrace(path)
    assert (again.records, again.last_at) == (1, 1.0)


# ---- continued from a mark -----------------------------------------------------------------------


def test_a_file_is_continued_from_a_mark_without_reading_what_is_before_it(path: Path) -> None:
    trace = DeviceTrace(path)
    trace.append(lines(1.0, 2.0))
    mark = trace.mark
    trace.append(lines(3.0))
    damaged = bytearray(path.read_bytes())
    damaged[mark.nbytes - 9] ^= 0xFF
    path.write_bytes(damaged)
    again = DeviceTrace(path, mark)
    assert (again.records, again.last_at, again.nbytes) == (3, 3.0, len(damaged))
    assert path.read_bytes() == damaged


def test_a_mark_of_more_than_there_is_counts_for_nothing(path: Path) -> None:
    trace = DeviceTrace(path)
    trace.append(lines(1.0))
    before = path.read_bytes()
    trace.append(lines(2.0))
    path.write_bytes(before)
    again = DeviceTrace(path, trace.mark)
    assert (again.records, again.last_at) == (1, 1.0)
